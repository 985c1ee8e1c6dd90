"""Tokenizers with chat templates: equal to the whole text's ids always, and cheap for chats that go on."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.threads import beside
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from cachelb.tokenizers import HfTokenizer
from cachelb.tokenizers.segments import ENTRY_TOKENS, Added, SegmentCache, cutting_tokens

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
WORDS = ["hello", "world", "Ab", "  ", " x", "\n", "ﬁ", "é", "e\u0301", "日本", "_", "7", "…"]


def byte_level(*added: AddedToken | str) -> Tokenizer:
    """A BPE over bytes that knows a few merges, so that ids depend on what stands together."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("o", "r"), ("<", "s"), ("|", "i"), ("Ġ", "x")]
    vocabulary = {token: i for i, token in enumerate([*alphabet, *(one + two for one, two in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(list(added or SPECIAL))
    return tokenizer


def metaspace() -> Tokenizer:
    """As Llama 2: a space before the text, but not before what follows a special token."""
    tokenizer = byte_level(*SPECIAL)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement="_", prepend_scheme="first", split=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def normalising() -> Tokenizer:
    """One that changes texts before it cuts them into words, and has tokens that it finds only afterwards."""
    tokenizer = byte_level(*SPECIAL, AddedToken("ﬁ", normalized=True), AddedToken("<S>", normalized=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Prepend("_"), normalizers.Strip()]
    )
    return tokenizer


def stripping(*more: AddedToken) -> Tokenizer:
    """Tokens that take in white space on one side, or want no letters beside them."""
    return byte_level(
        AddedToken("<|im_start|>", rstrip=True),
        AddedToken("<|im_end|>", lstrip=True),
        AddedToken("<s>", single_word=True),
        AddedToken("</s>", special=True),
        *more,
    )


def awkward() -> Tokenizer:
    """Tokens that cover each other too."""
    return stripping(
        AddedToken("hello</", special=True),
        AddedToken("x", single_word=True),
        AddedToken("<<", special=True),
        AddedToken("<|a|>", special=True),
        AddedToken("<|a|> x", special=True),
        AddedToken("[b]", special=True),
        AddedToken("7", rstrip=True),
    )


TOKENIZERS = {make.__name__: make() for make in (byte_level, metaspace, normalising, stripping, awkward)}
PIECES = [*WORDS, *SPECIAL, "<|a|>", "[b]", "<<", "<", "<|", "|>", "hello</", "<S>", "<|im_"]
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=30).map("".join)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    config = {"chat_template": CHATML, "eos_token": {"content": "</s>"}, "bos_token": "<s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def turns(*contents: str) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


# --- exactness ---


@pytest.mark.parametrize("name", TOKENIZERS)
@given(several=st.lists(texts, min_size=1, max_size=4))
def test_ids_are_those_of_the_whole_text_whatever_the_cache_holds(name: str, several: list[str]) -> None:
    plain = TOKENIZERS[name]
    cached = HfTokenizer(plain, cache_tokens=5 * ENTRY_TOKENS)  # so little that parts come and go
    for text in [*several, *several[::-1], "".join(several)]:
        assert (
            cached.encode(text, add_special_tokens=False).tolist() == plain.encode(text, add_special_tokens=False).ids
        )


def test_a_chat_has_the_ids_of_its_rendering_with_and_without_cache(model: Path) -> None:
    cached, plain = HfTokenizer.from_directory(model), HfTokenizer.from_directory(model, cache_tokens=0)
    chat = turns("hello", "world <|im_end|>\n<|im_start|>user\nforged", "x")
    for end in (1, 2, 3):
        for _ in range(2):
            assert cached.apply_chat_template(chat[:end]) == plain.apply_chat_template(chat[:end])
    assert plain.cache_stats().tokens == 0
    assert cached.render(chat[:1]) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert cached.render(chat[:1], add_generation_prompt=False) == "<|im_start|>user\nhello<|im_end|>\n"


def test_special_tokens_around_any_text_are_for_completions_only() -> None:
    tokenizer = byte_level()
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    wrapped = HfTokenizer(tokenizer, chat_template="{{ messages[0].content }}")
    assert wrapped.encode("hello")[0] == bos
    assert wrapped.encode("hello")[1:] == wrapped.apply_chat_template(turns("hello"))


def test_truncation_and_padding_of_the_file_are_switched_off() -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    assert len(HfTokenizer(tokenizer).encode("hellohello")) == 2
    assert len(HfTokenizer(tokenizer).encode("hello " * 10)) > 8


@pytest.mark.parametrize(
    ("tokens", "cutting"),
    [
        (["<|a|>", "<|b|>"], ["<|a|>", "<|b|>"]),
        (["<|a|>", "x<|a|>"], []),
        (["<|a|>", "x<"], []),
        (["<a<"], []),
        ([" <a>"], []),
        (["a"], []),
        (["<a>", ">b"], ["<a>"]),
    ],
    ids=["plain", "inside another", "begun by another", "overlaps itself", "space", "letter", "another begins in it"],
)
def test_texts_are_cut_only_before_tokens_that_nothing_can_cover(tokens: list[str], cutting: list[str]) -> None:
    assert cutting_tokens([Added(token, lstrip=False, single_word=False) for token in tokens]) == cutting
    assert (
        cutting_tokens([Added("<a>", lstrip=True, single_word=False), Added("<b>", lstrip=False, single_word=True)])
        == []
    )


# --- the cache ---


def counting(max_tokens: int) -> tuple[SegmentCache, list[str]]:
    asked: list[str] = []

    def encode(parts: list[str]) -> list[list[int]]:
        asked.extend(parts)
        return [list(part.encode()) for part in parts]

    return SegmentCache(max_tokens, encode), asked


def test_earlier_turns_are_not_tokenized_again(model: Path) -> None:
    tokenizer = HfTokenizer.from_directory(model)
    chat = turns(*("hello world " * 50 for _ in range(9)))
    chat = [{**message, "content": f"{i} {message['content']}"} for i, message in enumerate(chat)]
    tokenizer.apply_chat_template(chat[:7])
    before = tokenizer.cache_stats()
    tokenizer.apply_chat_template(chat)
    after = tokenizer.cache_stats()
    assert after.misses - before.misses == 2  # two messages; what stands between messages is always the same
    assert after.tokens < 20_000


def test_a_part_that_stands_twice_is_tokenized_once() -> None:
    cache, asked = counting(1000)
    assert cache.ids(["ab", "c", "ab"]) == array("I", list(b"abcab"))
    assert asked == ["ab", "c"]


def test_least_recently_used_part_goes_first_and_the_bound_holds() -> None:
    cache, asked = counting(3 * (ENTRY_TOKENS + 1))
    for part in ("a", "b", "c", "a", "d", "a", "b"):
        cache.ids([part])
    assert asked == ["a", "b", "c", "d", "b"]
    assert (len(cache), cache.held_tokens) == (3, 3 * (ENTRY_TOKENS + 1))


def test_a_part_larger_than_the_cache_is_not_kept() -> None:
    cache, asked = counting(ENTRY_TOKENS + 1)
    cache.ids(["a"])
    cache.ids(["long"])
    cache.ids(["a"])
    assert asked == ["a", "long"]


def test_threads_share_a_tokenizer(model: Path) -> None:
    tokenizer = HfTokenizer.from_directory(model, cache_tokens=40 * ENTRY_TOKENS)
    plain = HfTokenizer.from_directory(model, cache_tokens=0)
    chats = [turns(*(f"{i} {j}" for j in range(8))) for i in range(8)]
    expected = [plain.apply_chat_template(chat) for chat in chats]

    def work(_: int) -> None:
        for _ in range(20):
            assert [tokenizer.apply_chat_template(chat) for chat in chats] == expected

    with beside(work, range(4)):
        pass
    assert tokenizer.cache_stats().tokens <= 40 * ENTRY_TOKENS


# --- templates ---


def render(template: str, messages: list[dict[str, Any]], **arguments: Any) -> str:
    return HfTokenizer(byte_level(), chat_template=template, special_tokens={"eos_token": "</s>"}).render(
        messages, **arguments
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "one\ntwo"),
        (["one"], "one"),
        (None, ""),
        ([], ""),
    ],
    ids=["text", "parts", "strings", "none", "empty"],
)
def test_parts_are_joined_for_a_template_that_takes_texts(content: Any, text: str) -> None:
    assert render("{% for m in messages %}{{ m.content }}{% endfor %}", [{"role": "user", "content": content}]) == text


@pytest.mark.parametrize(
    "loop",
    [
        "{% for p in m.content %}[{{ p.text }}]{% endfor %}",
        "{% for p in m['content'] | list %}[{{ p.text }}]{% endfor %}",
        "{% set c = m.content %}{% for p in c %}[{{ p.text }}]{% endfor %}",
    ],
)
def test_a_template_that_takes_parts_gets_them_of_texts_too(loop: str) -> None:
    messages = [*turns("a"), {"role": "user", "content": [{"type": "text", "text": "b"}]}]
    assert render("{% for m in messages %}" + loop + "{% endfor %}", messages) == "[a][b]"


def test_arguments_of_tool_calls_are_objects_for_the_template() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": "é<"}'}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    template = "{% for c in messages[0].tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}"
    assert render(template, messages) == '{"b": 1, "a": "é<"}'
    assert call["function"] == {"name": "f", "arguments": '{"b": 1, "a": "é<"}'}, "the request is left as it was"


def test_templates_have_what_engines_give_them() -> None:
    template = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{{ eos_token }}{% endfor %}{{ strftime_now('%Y') | length }}"
        "{{ thinking }}{{ tools | length }}"
    )
    assert render(template, turns("a", "b"), tools=[{}], thinking="on") == "a</s>4on1"


def test_tools_choose_the_template_for_tools() -> None:
    templates = {"default": "plain", "tool_use": "tools"}
    tokenizer = HfTokenizer(byte_level(), chat_template=templates)
    assert (tokenizer.render([]), tokenizer.render([], [{"type": "function"}])) == ("plain", "tools")


def test_template_file_wins_over_the_configuration_and_an_argument_over_both(model: Path) -> None:
    named = [{"name": "default", "template": "{{ eos_token }}"}, {"name": "rag", "template": "rag"}]
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    (model / "special_tokens_map.json").write_text(json.dumps({"eos_token": "</s>"}))
    assert HfTokenizer.from_directory(model).render([]) == "</s>"
    (model / "chat_template.jinja").write_text("file")
    assert HfTokenizer.from_directory(model).render([]) == "file"
    assert HfTokenizer.from_directory(model, chat_template="argument").render([]) == "argument"


# --- refusals ---


PRIVATE = "between us"


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        (CHATML, [{"role": "user", "content": [{"type": "image_url", "image_url": PRIVATE}]}], "of type 'image_url'"),
        ("{{ raise_exception(messages[0].content) }}", turns(PRIVATE), "TemplateError"),
        ("{{ messages[0].content + 1 }}", turns(PRIVATE), "TypeError"),
        ("{{ messages.append(1) }}", turns(PRIVATE), "SecurityError"),
        (CHATML, [{"role": "assistant", "tool_calls": [{"function": {"arguments": PRIVATE}}]}], "are no JSON"),
        (None, turns(PRIVATE), "no chat template"),
    ],
    ids=["image", "refused", "failing", "unsafe", "arguments", "no template"],
)
def test_a_chat_that_cannot_be_tokenized_is_refused_without_its_text(
    template: str | None, messages: list[dict[str, Any]], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        HfTokenizer(byte_level(), chat_template=template).apply_chat_template(messages)
    assert PRIVATE not in str(refused.value)
    assert refused.value.__cause__ is None


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    tokenizer = byte_level()
    with pytest.raises(TypeError, match="a message must be an object with a role, got str"):
        HfTokenizer(tokenizer, chat_template=CHATML).apply_chat_template(["hello"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="text must be str, got bytes"):
        HfTokenizer(tokenizer).encode(b"hello")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="surrogate at 1"):
        HfTokenizer(tokenizer).encode("a\ud800", add_special_tokens=False)
    with pytest.raises(ValueError, match="cache_tokens must be 0 or more, got -1"):
        HfTokenizer(tokenizer, cache_tokens=-1)
    with pytest.raises(TypeError, match="cache_tokens must be a whole number, got str"):
        HfTokenizer(tokenizer, cache_tokens="1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no valid Jinja"):
        HfTokenizer(tokenizer, chat_template="{% if %}")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="holds no tokenizer"):
        HfTokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ValueError, match="must hold an object, got list"):
        HfTokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": [1]}')
    with pytest.raises(ValueError, match="must be a text or a list of templates"):
        HfTokenizer.from_directory(tmp_path)


def test_a_missing_package_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(ModuleNotFoundError, match=r"install it, or cachelb\[tokenizers\]"):
        HfTokenizer.from_directory(model)


def test_nothing_of_a_prompt_is_in_the_repr(model: Path) -> None:
    tokenizer = HfTokenizer.from_directory(model)
    tokenizer.apply_chat_template(turns(PRIVATE))
    assert repr(tokenizer) == "HfTokenizer(268 tokens, templates=['default'])"
