"""PyTorch on the dequantized weights of the file, and Hugging Face's tokenizer on its vocabulary."""
import copy
import math
import os
import sys

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/families")
sys.path.insert(0, GOLDEN)
import jinja2  # noqa: E402
import peft  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as nnf  # noqa: E402
from families import D64, from_gguf, plain, true_float64  # noqa: E402
from gguf import GGUFReader  # noqa: E402
from golden_family import attach  # noqa: E402
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: E402

CONTROL = 3     # tokenizer.ggml.token_type of a control token
IGNORED = -100  # label without loss


class Words:
    """SmolLM2's tokenizer and chat template. Its published steps are Digits and ByteLevel; transformers' reader of GGUF files leaves
    the first out."""

    def __init__(self, path):
        fields = GGUFReader(path).fields
        tokens, kinds, merges = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type", "merges"))
        pairs = [tuple(merge.split(" ")) for merge in merges]
        self.tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
        digits, bytes_ = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
        self.tokenizer.decoder = decoders.ByteLevel()
        control = [token for token, kind in zip(tokens, kinds) if kind == CONTROL]
        self.tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
        self.end_of_text, self.end_of_turn = tokens.index("<|endoftext|>"), tokens.index("<|im_end|>")
        self.template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(fields["tokenizer.chat_template"].contents())

    def ids(self, text):
        """-> ids of a text whose control tokens are read as such"""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def lacks(self, text):
        """-> whether no token spells some byte of the text"""
        pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
        return any(self.tokenizer.token_to_id(byte) is None for piece, _ in pieces for byte in piece)

    def text(self, ids):
        """-> text of ids, without control tokens"""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def prompt(self, messages):
        """-> ids of a conversation that the assistant goes on with"""
        return self.ids(self.template.render(messages=messages, add_generation_prompt=True))

    def conversation(self, messages):
        """-> (ids, labels): the assistant's answers and the tokens that end them have a loss"""
        ids, labels = [], []
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                prompt = self.prompt(messages[:i])
                labels += [IGNORED] * (len(prompt) - len(labels))
                ids = self.ids(self.template.render(messages=messages[:i + 1], add_generation_prompt=False))
                assert ids[:len(prompt)] == prompt, "the prompt is no prefix of the conversation"
                end = len(prompt) + ids[len(prompt):].index(self.end_of_turn) + 1
                labels += ids[len(prompt):end]
                labels += [IGNORED] * (len(ids) - end)
        return ids, labels


def model(path):
    """-> transformers' model in f32"""
    made = from_gguf(path, torch.float32)
    made.gguf = None  # its copies of the weights
    return made


def plain_model(path):
    """-> the file's keys and tensors as they are stored"""
    return plain.Model(path)


def logits(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def loss(model, sample):
    """-> mean loss of a sample's loss tokens"""
    labels = torch.tensor(sample.get("labels", sample["input_ids"]))[1:]
    return nnf.cross_entropy(logits(model, sample["input_ids"])[:-1], labels, ignore_index=IGNORED)


@torch.no_grad()
def mean_loss(model, samples):
    """-> mean loss of all loss tokens of the samples"""
    counts = [sum(label != IGNORED for label in sample.get("labels", sample["input_ids"])[1:]) for sample in samples]
    return sum(float(loss(model, sample)) * count for sample, count in zip(samples, counts)) / sum(counts)


def adapted(model, rank, alpha, seed):
    """-> a copy of the model with a LoRA whose A and B are both random"""
    return attach(copy.deepcopy(model), rank, alpha, seed, b_std=0.02)


def load(model, folder):
    """-> a copy of the model with the adapter of a PEFT folder, in f32"""
    return peft.PeftModel.from_pretrained(copy.deepcopy(model), folder, autocast_adapter_dtype=False).eval()


def double(model):
    """-> a copy of the model in f64, rotary frequencies included"""
    wide = copy.deepcopy(model).to(D64)
    inner = wide.get_base_model() if isinstance(wide, peft.PeftModel) else wide
    inner.model.rotary_emb.inv_freq = frequencies(wide.config)
    return wide


def exact_loss(model, samples):
    """-> mean loss of all loss tokens of the samples, in f64"""
    with true_float64():
        return mean_loss(double(model), samples)


@torch.no_grad()
def exact_logits(model, ids):
    """-> logits in f64, as NumPy's array"""
    with true_float64():
        return logits(double(model), ids).numpy()


@torch.no_grad()
def exact_log_probabilities(model, ids):
    """-> log-probability of each token behind those before it, in f64; that of the first is 0"""
    found = torch.from_numpy(exact_logits(model, ids)).log_softmax(-1)
    return torch.cat((found.new_zeros(1), found[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0]))


def gradients(model, sample):
    """-> {PEFT's name: gradient} in f64"""
    wide = double(model)
    with true_float64():
        loss(wide, sample).backward()
    return named_gradients(wide)


def single_gradients(model, sample):
    """-> {PEFT's name: gradient} as PyTorch computes it in f32"""
    own = copy.deepcopy(model)
    loss(own, sample).backward()
    return named_gradients(own)


def named_gradients(model):
    return {name.replace(".default", ""): p.grad.to(D64) for name, p in model.named_parameters() if p.grad is not None}


def frequencies(config):
    """-> rotary frequencies in f64, not rounded to f32"""
    base = config.rope_parameters["rope_theta"]
    return base ** (-torch.arange(0, config.head_dim, 2, dtype=D64) / config.head_dim)


def train(model, samples, rate):
    """Trains a model with an adapter: a sample per step, AdamW, cosine from `rate`. -> losses, gradient norms"""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 + math.cos(math.pi * step / len(samples))) / 2)
    losses, norms = [], []
    for sample in samples:
        optimizer.zero_grad()
        value = loss(model, sample)
        value.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, 1.0)))
        optimizer.step()
        schedule.step()
        losses.append(float(value.detach()))
    return losses, norms


@torch.no_grad()
def reply(model, prompt, most, stop):
    """-> (greedy ids without the end token, distances from the likeliest to the second logit)"""
    given, cache, ids, gaps = prompt, None, [], []
    while len(gaps) < most:
        out = model(input_ids=torch.tensor([given]), past_key_values=cache, use_cache=True)
        best, cache = out.logits[0, -1].topk(2), out.past_key_values
        gaps.append(float(best.values[0] - best.values[1]))
        given = [int(best.indices[0])]
        if given[0] in stop:
            break
        ids += given
    return ids, gaps
