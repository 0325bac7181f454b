//! Go templates of chat layouts that models bear as Jinja, for Ollama. Ollama knows few Jinja templates itself, and sends the question
//! alone where it knows none.

/// Templates without functions. Ollama adds the token that begins a sequence.
pub const LAYOUTS: [&str; 7] = [QWEN3, QWEN2_5, SMOLLM2, LLAMA3_1, MISTRAL, MISTRAL_V3, GPT_OSS];

/// ChatML of Qwen 3: without thinking, the prompt has an empty thought.
const QWEN3: &str = concat!(
    "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n",
    "{{ if and .IsThinkSet (not .Think) }}<think>\n\n</think>\n\n{{ end }}"
);

/// ChatML of Qwen 2.5, with its own system message.
const QWEN2_5: &str = concat!(
    "{{ if not .System }}<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n",
    "{{ end }}{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n"
);

/// ChatML of SmolLM2, with its own system message.
const SMOLLM2: &str = concat!(
    "{{ if not .System }}<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n",
    "{{ end }}{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n"
);

/// Llama 3.1, whose system turn has two dates.
const LLAMA3_1: &str = concat!(
    "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
    "{{ .System }}<|eot_id|>{{ range .Messages }}{{ if ne .Role \"system\" }}<|start_header_id|>{{ .Role }}<|end_header_id|>\n\n",
    "{{ .Content }}<|eot_id|>{{ end }}{{ end }}<|start_header_id|>assistant<|end_header_id|>\n\n"
);

/// Mistral, whose system message stands in front of the first question.
const MISTRAL: &str = concat!(
    "{{ $system := .System }}{{ range .Messages }}{{ if eq .Role \"user\" }} [INST] {{ if $system }}{{ $system }}\n\n",
    "{{ $system = \"\" }}{{ end }}{{ .Content }} [/INST]{{ else if eq .Role \"assistant\" }} {{ .Content }}</s>{{ end }}{{ end }}"
);

/// Mistral since its third version, without spaces around a question.
const MISTRAL_V3: &str = concat!(
    "{{ $system := .System }}{{ range .Messages }}{{ if eq .Role \"user\" }}[INST]{{ if $system }}{{ $system }}\n\n",
    "{{ $system = \"\" }}{{ end }}{{ .Content }}[/INST]{{ else if eq .Role \"assistant\" }}{{ .Content }}</s>{{ end }}{{ end }}"
);

/// gpt-oss at the usual effort of reasoning, whose system turn has the date of today.
const GPT_OSS: &str = concat!(
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n",
    "Current date: {{ currentDate }}\n\nReasoning: medium\n\n",
    "# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>",
    "{{ if .System }}<|start|>developer<|message|># Instructions\n\n{{ .System }}\n\n<|end|>{{ end }}{{ range .Messages }}",
    "{{ if eq .Role \"user\" }}<|start|>user<|message|>{{ .Content }}<|end|>{{ else if eq .Role \"assistant\" }}",
    "<|start|>assistant<|channel|>final<|message|>{{ .Content }}<|end|>{{ end }}{{ end }}<|start|>assistant"
);
