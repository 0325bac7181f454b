//! [`Refused`]: architectures of llama.cpp that are not trained here, each with the reason and the nearest one that is.
//!
//! docs/models.md has the table. An architecture that becomes a [`super::Family`] leaves it.

use super::named;

/// An architecture that llama.cpp runs and that is not trained here.
#[derive(Debug)]
pub struct Refused {
    /// `general.architecture` of its files.
    pub name: &'static str,
    /// Its models.
    pub models: &'static str,
    /// A noun phrase for what it has and no family here has.
    pub has: &'static str,
    /// `general.architecture` of the nearest family, or what to use in the place of the file.
    pub nearest: &'static str,
}

impl Refused {
    /// The advice in the place of a model of this architecture.
    pub fn instead(&self) -> String {
        match named(self.nearest) {
            Some(f) => format!("`{}` ({}, such as {}), the nearest that trains", f.name, f.title, f.example),
            None => self.nearest.to_owned(),
        }
    }
}

/// The row of an architecture, if llama.cpp runs it and it is not trained here.
pub fn refused(name: &str) -> Option<&'static Refused> {
    REFUSED.iter().find(|row| row.name == name)
}

const fn row(name: &'static str, models: &'static str, has: &'static str, nearest: &'static str) -> Refused {
    Refused { name, models, has, nearest }
}

/// The part that DeepSeek's models and their kin have.
const MLA: &str = "keys and values in a latent vector (MLA)";
/// The part that models for retrieval lack.
const EMBEDS: &str = "no prediction of the next token: it embeds texts";

/// Every such architecture, by name.
pub const REFUSED: [Refused; 125] = [
    row("afmoe", "Trinity", "a router of sigmoids and a gate on the output of attention", "qwen3moe"),
    row("apertus", "Apertus", "an xIELU block without a gate", "llama"),
    row("arcee", "Arcee AFM 4.5B", "a squared ReLU block without a gate", "llama"),
    row("arctic", "Snowflake Arctic", "a dense block and a mixture side by side in every layer", "qwen2moe"),
    row("arwkv7", "ARWKV", "a recurrence of RWKV in the place of attention", "qwen35"),
    row(
        "baichuan",
        "Baichuan",
        "ALiBi in the place of rotary embedding in its 13B, and a vocabulary of its own",
        "llama",
    ),
    row("bailingmoe", "Ling 1", "ungated shared experts beside its routed ones", "qwen2moe"),
    row("bailingmoe2", "Ling 2", "a router of sigmoids with groups and ungated shared experts", "qwen3moe"),
    row(
        "bailingmoe3",
        "Ling 3",
        "a delta rule with gates for each channel, and keys and values in a latent vector",
        "qwen35moe",
    ),
    row("bert", "BERT", EMBEDS, "qwen3"),
    row("bitnet", "BitNet b1.58", "norms inside attention and a squared ReLU block", "llama"),
    row("bloom", "BLOOM", "ALiBi in the place of rotary embedding", "qwen3"),
    row("chameleon", "Chameleon", "images as tokens, and LayerNorm of queries and keys", "llama"),
    row(
        "chatglm",
        "ChatGLM 3 and GLM 4 of 2024",
        "one tensor of queries, keys and values with its own order, read by no family here",
        "glm4",
    ),
    row(
        "clip",
        "vision and audio towers (mmproj)",
        "no text model",
        "the file of the text model that it belongs to",
    ),
    row("codeshell", "CodeShell", "LayerNorm and a GELU block without a gate", "qwen2"),
    row("cogvlm", "CogVLM", "second matrices for the tokens of images", "qwen2vl"),
    row(
        "cohere2",
        "Command R7B and Command A",
        "LayerNorm, and attention and feed-forward side by side",
        "exaone4",
    ),
    row(
        "cohere2moe",
        "Command mixture of experts",
        "LayerNorm, and attention and a mixture side by side",
        "qwen3moe",
    ),
    row("command-r", "Command R", "LayerNorm, and attention and feed-forward side by side", "llama"),
    row("dbrx", "DBRX", "LayerNorm, one tensor of queries, keys and values, and clamped queries", "qwen3moe"),
    row("deci", "Llama Nemotron of NVIDIA", "layers of different shapes, some without attention", "llama"),
    row(
        "deepseek",
        "DeepSeek V1 mixture of experts",
        "ungated shared experts beside its routed ones",
        "qwen2moe",
    ),
    row("deepseek2-ocr", "DeepSeek OCR", "ungated shared experts behind a tower for images", "qwen3vlmoe"),
    row(
        "deepseek32",
        "DeepSeek V3.2",
        "sparse attention with an indexer, and keys and values in a latent vector (MLA)",
        "qwen3moe",
    ),
    row("deepseek4", "DeepSeek V4", "hyper-connections and compressed sparse attention", "qwen35moe"),
    row("dflash", "drafts of DFlash", "no model of its own: it drafts tokens for another one", "qwen3"),
    row("dots1", "dots.llm1", "a router of sigmoids and ungated shared experts", "qwen3moe"),
    row(
        "dots3note",
        "dots 3",
        "sparse attention with an indexer, and keys and values in a latent vector (MLA)",
        "qwen3moe",
    ),
    row("dream", "Dream", "no prediction of the next token: it fills masked ones (diffusion)", "qwen2"),
    row("eagle3", "drafts of EAGLE 3", "no model of its own: it drafts tokens for another one", "llama"),
    row(
        "ernie4_5-moe",
        "ERNIE 4.5 mixture of experts",
        "ungated shared experts and biases that choose experts",
        "ernie4_5",
    ),
    row("eurobert", "EuroBERT", EMBEDS, "qwen3"),
    row(
        "exaone",
        "EXAONE 3",
        "blocks of Llama under an architecture of its own, which has not been compared with its authors' code here",
        "exaone4",
    ),
    row("exaone-moe", "K-EXAONE", "a router of sigmoids with groups and ungated shared experts", "exaone4"),
    row("falcon", "Falcon 7B to 180B", "LayerNorm, and attention and feed-forward side by side", "llama"),
    row("falcon-h1", "Falcon H1", "Mamba-2 beside attention in every layer", "qwen35"),
    row("gemma", "Gemma 1", "no norms behind its blocks", "gemma2"),
    row("gemma-embedding", "EmbeddingGemma", EMBEDS, "gemma3"),
    row("gemma3n", "Gemma 3n", "four streams of activations (AltUp) and sparse activations", "gemma4"),
    row(
        "gemma4-assistant",
        "drafts of Gemma 4",
        "no model of its own: it drafts tokens for Gemma 4",
        "gemma4",
    ),
    row(
        "glm-dsa",
        "GLM 5",
        "sparse attention with an indexer, and keys and values in a latent vector (MLA)",
        "glm4",
    ),
    row("glm4moe", "GLM 4.5 to 4.7", "a router of sigmoids with biases and an ungated shared expert", "glm4"),
    row(
        "glm5-next",
        "the GLM after 5",
        "hyper-connections, sparse attention with an indexer, and keys and values in a latent vector (MLA)",
        "glm4",
    ),
    row("gpt2", "GPT-2", "LayerNorm and learned positions", "qwen3"),
    row("gptj", "GPT-J", "LayerNorm, and attention and feed-forward side by side", "llama"),
    row("gptneox", "GPT-NeoX and Pythia", "LayerNorm, and attention and feed-forward side by side", "llama"),
    row(
        "granite_swa",
        "Granite with sliding windows",
        "windows and sinks beside the four factors of Granite",
        "granite",
    ),
    row("granitehybrid", "Granite 4 H", "Mamba-2 in most of its layers", "granite"),
    row("graniteswitch", "Granite with switched adapters", "adapters of its own inside the file", "granite"),
    row(
        "grok",
        "Grok 1 and 2",
        "softcapped attention before a mixture, of 270 billion weights and more",
        "granitemoe",
    ),
    row("grovemoe", "GroveMoE", "experts with adjugate experts in groups", "qwen3moe"),
    row("hrm_text", "HRM-Text", "two networks that run in turn for several rounds", "qwen3"),
    row("hunyuan-moe", "Hunyuan A13B", "an ungated shared expert beside its routed ones", "hunyuan-dense"),
    row("hunyuan_vl", "Hunyuan VL", "rotary embedding with sections for images", "hunyuan-dense"),
    row("hy_v3", "Hy3", "a router of sigmoids and an ungated shared expert", "hunyuan-dense"),
    row(
        "hy_v4",
        "Hy4",
        "hyper-connections, sparse attention with an indexer, and keys and values in a latent vector (MLA)",
        "hunyuan-dense",
    ),
    row(
        "internlm2",
        "InternLM 2 and 2.5",
        "blocks of Llama under an architecture of its own, which has not been compared with its authors' code here",
        "llama",
    ),
    row("jais", "Jais", "ALiBi in the place of rotary embedding, and LayerNorm", "llama"),
    row("jais2", "Jais 2", "LayerNorm and a squared ReLU block without a gate", "llama"),
    row("jamba", "Jamba", "Mamba in most of its layers", "lfm2moe"),
    row("jina-bert-v2", "Jina embeddings 2", EMBEDS, "qwen3"),
    row("jina-bert-v3", "Jina embeddings 3", EMBEDS, "qwen3"),
    row(
        "kimi-k3",
        "Kimi K3",
        "a delta rule with gates for each channel, and keys and values in a latent vector (MLA)",
        "qwen35moe",
    ),
    row(
        "kimi-linear",
        "Kimi Linear",
        "a delta rule with gates for each channel, and keys and values in a latent vector (MLA)",
        "qwen35moe",
    ),
    row("laguna", "Laguna", "a gate on the output of attention, and a router of sigmoids", "qwen3moe"),
    row("llada", "LLaDA", "no prediction of the next token: it fills masked ones (diffusion)", "llama"),
    row(
        "llada-moe",
        "LLaDA mixture of experts",
        "no prediction of the next token: it fills masked ones (diffusion)",
        "qwen3moe",
    ),
    row("llama-embed", "Llama embeddings", EMBEDS, "llama"),
    row(
        "llama4",
        "Llama 4",
        "attention in chunks, and an expert beside a shared one in models of 109 billion weights and more",
        "llama",
    ),
    row(
        "maincoder",
        "Maincoder",
        "blocks of Qwen 3 under an architecture of its own, which has not been compared with its authors' code here",
        "qwen3",
    ),
    row("mamba", "Mamba", "a state-space recurrence in the place of attention", "qwen35"),
    row("mamba2", "Mamba-2", "a state-space recurrence in the place of attention", "qwen35"),
    row("maple", "Maple", "clamped experts and windows in a mixture of its own", "gpt-oss"),
    row("mellum", "Mellum 2", "windows in a mixture with a rotary base for each kind of layer", "qwen3moe"),
    row("mimo2", "MiMo V2", "sinks and windows beside values with a head size of their own", "gpt-oss"),
    row(
        "minicpm",
        "MiniCPM 1, 2 and 4",
        "factors as Granite has them, which not every file names",
        "granite",
    ),
    row("minicpm3", "MiniCPM 3", MLA, "granite"),
    row("minimax-01", "MiniMax 01 and M1", "lightning attention in most of its layers", "qwen35moe"),
    row(
        "minimax-m2",
        "MiniMax M2",
        "a router of sigmoids with biases, in models of 230 billion weights",
        "qwen3moe",
    ),
    row("minimax-m3", "MiniMax M3", "sparse attention, and a router of sigmoids with biases", "qwen3moe"),
    row("mistral4", "Mistral 4", MLA, "mistral3"),
    row("modern-bert", "ModernBERT", EMBEDS, "qwen3"),
    row("mpt", "MPT", "ALiBi in the place of rotary embedding", "llama"),
    row(
        "muse-glimmer",
        "Muse Glimmer",
        "a gate on the output of attention, and layers without rotary embedding between windows",
        "exaone4",
    ),
    row("nanbeige", "Nanbeige with loops", "layers that run several times", "llama"),
    row("nemotron", "Nemotron 3 and Minitron", "LayerNorm and a squared ReLU block without a gate", "llama"),
    row("nemotron_h", "Nemotron Nano 2", "Mamba-2 in most of its layers", "qwen35"),
    row(
        "nemotron_h_moe",
        "Nemotron 3 Nano",
        "Mamba-2 in most of its layers, and squared ReLU experts",
        "qwen35moe",
    ),
    row("neo-bert", "NeoBERT", EMBEDS, "qwen3"),
    row("nomic-bert", "Nomic Embed", EMBEDS, "qwen3"),
    row("nomic-bert-moe", "Nomic Embed 2", EMBEDS, "qwen3"),
    row("olmo", "OLMo 1", "LayerNorm without weights, and clamped queries", "olmo2"),
    row("olmoe", "OLMoE", "norms of whole rows of queries and keys before a mixture", "olmo2"),
    row("openelm", "OpenELM", "numbers of heads that differ from layer to layer", "llama"),
    row("orion", "Orion", "LayerNorm with biases", "llama"),
    row("paddleocr", "PaddleOCR VL", "rotary embedding with sections for images", "ernie4_5"),
    row("pangu-embedded", "openPangu Embedded", "biases of every matrix of attention", "qwen2"),
    row("phi2", "Phi 1 to 2", "LayerNorm, and attention and feed-forward side by side", "phi3"),
    row("phimoe", "Phi 3.5 mixture of experts", "LayerNorm around a mixture", "phi3"),
    row("plamo", "PLaMo 1", "attention and feed-forward side by side", "llama"),
    row("plamo2", "PLaMo 2", "Mamba in every other layer", "lfm2"),
    row("plamo3", "PLaMo 3", "norms around each block with offsets of their own", "gemma3"),
    row("plm", "PLM", "keys and values in a latent vector (MLA), and a squared ReLU block", "qwen3"),
    row("pockettts", "Pocket TTS", "sound, and no text, as its output", "qwen3"),
    row("qwen", "Qwen 1", "one tensor of queries, keys and values under older names", "qwen2"),
    row("qwen3next", "Qwen 3 Next", "delta nets whose matrices are joined in another order", "qwen35moe"),
    row("qwen3tts", "Qwen 3 TTS", "sound, and no text, as its output", "qwen3"),
    row(
        "qwen4exp",
        "Qwen 3.8 Flash-Next",
        "hyper-connections, sparse attention with an indexer, and hashed n-gram embeddings",
        "qwen35moe",
    ),
    row("refact", "Refact", "ALiBi in the place of rotary embedding", "qwen2"),
    row("rnd1", "RND1", "no prediction of the next token: it fills masked ones (diffusion)", "qwen3moe"),
    row("rwkv6", "RWKV 6", "a recurrence of RWKV in the place of attention", "qwen35"),
    row("rwkv6qwen2", "QRWKV 6", "a recurrence of RWKV in the place of attention", "qwen35"),
    row("rwkv7", "RWKV 7", "a recurrence of RWKV in the place of attention", "qwen35"),
    row(
        "smallthinker",
        "SmallThinker",
        "a router that reads the input of attention, and ReLU experts",
        "qwen3moe",
    ),
    row("spark2_5", "Spark X2.5", "a gate for each head of attention", "qwen3"),
    row("stablelm", "StableLM", "LayerNorm, and rotary embedding of a quarter of each head", "llama"),
    row("starcoder", "StarCoder 1", "LayerNorm, learned positions and one head of keys", "qwen2"),
    row("starcoder2", "StarCoder 2", "LayerNorm and a GELU block without a gate", "qwen2"),
    row(
        "step35",
        "Step 3.5 Flash",
        "a gate for each head of attention, and a router of sigmoids",
        "qwen3moe",
    ),
    row("t5", "T5", "an encoder before its decoder", "gemma3"),
    row("t5encoder", "T5 encoders", EMBEDS, "gemma3"),
    row("talkie", "Talkie", "gains of heads and skips from the embedding to every layer", "qwen3"),
    row("wavtokenizer-dec", "WavTokenizer", "sound, and no text, as its output", "qwen3"),
    row(
        "xverse",
        "XVERSE",
        "blocks of Llama under an architecture of its own, which has not been compared with its authors' code here",
        "llama",
    ),
];
