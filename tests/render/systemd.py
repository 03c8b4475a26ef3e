"""How systemd reads units and environment files, written from its manual pages, for tests.

`systemd.syntax(7)`, `systemd.service(5)` "Command lines", `systemd.exec(5)` "EnvironmentFile=",
`systemd.unit(5)` "Specifiers". Strict: anything it would expand or warn about is an error.
"""

import re

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "s": " "}


def sections(unit: str) -> dict[str, list[tuple[str, str]]]:
    """The settings of a unit file by section, in order."""
    result: dict[str, list[tuple[str, str]]] = {}
    current: list[tuple[str, str]] | None = None
    for line in unit.splitlines():
        if not line or line[0] in "#;":
            continue
        if line.startswith("["):
            current = result.setdefault(line.strip("[]"), [])
            continue
        assert current is not None, line
        key, sign, value = line.partition("=")
        assert sign, line
        assert not value.endswith("\\"), line
        current.append((key, value))
    return result


def exec_words(value: str) -> list[str]:
    """The arguments that a command line gives: quotes, escapes, specifiers, variables."""
    words = [word for word, _ in _split(value)]
    return [words[0].replace("%%", "%"), *(_expanded(word) for word in words[1:])]


def _split(value: str) -> list[tuple[str, bool]]:
    words: list[tuple[str, bool]] = []
    position = 0
    while position < len(value):
        if value[position] == " ":
            position += 1
        elif value[position] == '"':
            text, position = _quoted(value, position + 1)
            assert position == len(value) or value[position] == " "
            words.append((text, True))
        else:
            end = value.find(" ", position)
            end = len(value) if end < 0 else end
            text = value[position:end]
            assert not re.search(r"[\\\"';]", text), text
            words.append((text, False))
            position = end
    return words


def _quoted(value: str, position: int) -> tuple[str, int]:
    raw = bytearray()
    while value[position] != '"':
        if value[position] != "\\":
            raw += value[position].encode()
            position += 1
        elif value[position + 1] == "x":
            raw.append(int(value[position + 2 : position + 4], 16))
            position += 4
        else:
            raw += _ESCAPES[value[position + 1]].encode()
            position += 2
    return raw.decode(), position + 1


def _expanded(word: str) -> str:
    assert not re.search(r"(?<!%)(?:%%)*%(?!%)", word), f"a specifier in {word}"
    word = word.replace("%%", "%")
    assert not re.search(r"(?<!\$)(?:\$\$)*\$(?!\$)", word), f"a variable in {word}"
    return word.replace("$$", "$")


def env_file(text: str) -> dict[str, str]:
    """The variables that an environment file sets."""
    result: dict[str, str] = {}
    position = 0
    while position < len(text):
        if text[position] in "#\n":
            position = text.index("\n", position) + 1
            continue
        equals = text.index("=", position)
        name = text[position:equals]
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name), name
        if text[equals + 1] == '"':
            result[name], position = _env_quoted(text, equals + 2)
            assert text[position] == "\n"
        else:
            end = text.index("\n", equals)
            result[name] = text[equals + 1 : end]
            assert not re.search(r"[\\\"'\s]", result[name]), result[name]
            position = end
        position += 1
    return result


def _env_quoted(text: str, position: int) -> tuple[str, int]:
    value = ""
    while text[position] != '"':
        if text[position] == "\\" and text[position + 1] in '"\\`$':
            position += 1
        value += text[position]
        position += 1
    return value, position + 1
