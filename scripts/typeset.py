"""How a comment of the sources is set on a page of the book: which of its lines are prose, a formula, a drawing.

A formula keeps the columns in which it is typed; its indices, powers and Greek letters are set. A drawing of + - | gets
lines that join. Prose is one paragraph whatever the width of the source.
tests/test_book.cpp
"""
import html
import re

GREEK = dict(zip("alpha beta gamma delta epsilon eps theta lambda mu pi sigma phi".split(), "αβγδεεθλμπσφ"))
NAMES = "|".join(GREEK)
INDEXED = "lse|sum|max|mean|ramp|keep|weight|expert|slope"
INLINE = re.compile("|".join((
    r"`(?P<code>[^`\n]+)`",
    r"(?P<path>(?<![\w/.])(?:[a-z0-9_]+/)*[A-Za-z0-9_]+\.(?:cuh|cu|cpp|h|md|py|sh)\b)",
    r"arXiv (?P<arxiv>\d{4}\.\d{5})",
    r"(?P<flag>(?<!\S)--[a-z][\w=|,.-]*\w)",
    rf"(?P<base>(?<![\w/.])(?!sm_)(?:[A-Za-z]{{1,2}}|d[a-z]{{1,2}}|{INDEXED}|{NAMES})'?|(?<=\.)[a-z]{{1,2}})"
    r"_(?P<index>[a-z]{1,2}\d?|\d+)(?![\w(])",
    r"\^(?P<power>\([^()]*\)|-?\w+|T\b)",
    rf"(?P<greek>(?<![\w/])(?<!--)(?:{NAMES})(?=\d?(?![\w(]|[.:-]\w| rule)))(?P<number>\d?)",
    r"(?P<name>\b[A-Za-z]\w*_\w+(?:\(\))?)")))


def set_text(text, link, formula=False):
    """Prose, or one line of a formula, in HTML. A formula's columns stay where they are: what indices and powers save
    of its width is added to the next gap."""
    out, at, saved = [], 0, 0.0

    def plain(piece):
        nonlocal saved
        for part in re.split(r"( {2,})", piece):
            if formula and saved and part.startswith("  "):
                out.append(f'<span style="display:inline-block;width:{len(part) + saved:.2f}ch"></span>')
                saved = 0
            else:
                out.append(html.escape(part))

    for found in INLINE.finditer(text):
        plain(text[at:found.start()])
        at, typed, kind = found.end(), html.escape(found[0]), found.lastgroup
        if found["base"] or found["power"]:
            base = found["base"] or ""
            small = found["index"] or re.sub(r"^\((.*)\)$", r"\1", found["power"])
            saved += len(found[0]) - len(GREEK.get(base, base)) - 0.75 * len(small)
            tag, inside = ("sub", html.escape(small)) if base else ("sup", set_text(small, link))
            typed = f"{GREEK.get(base, base)}<{tag}>{inside}</{tag}>"
        elif found["greek"]:
            if found["greek"] == "delta" and not formula:
                pass  # (the word)
            else:
                saved += len(found["greek"]) - 1
                typed = GREEK[found["greek"]] + (f"<sub>{found['number']}</sub>" if found["number"] else "")
        elif kind == "path":
            to = link(found["path"])
            typed = f'<a href="{to}">{typed}</a>' if to else typed
        elif kind == "arxiv":
            typed = f'<a href="https://arxiv.org/abs/{found["arxiv"]}">{typed}</a>'
        elif kind == "code":
            typed = f"<code>{html.escape(found['code'])}</code>"
        elif not formula:
            typed = f"<code>{typed}</code>"
        out.append(typed)
    plain(text[at:])
    return "".join(out)


def told(words):
    """The share of what are words of a language, among words."""
    return sum(bool(re.fullmatch(r"[A-Za-z][a-z]{2,}[.,;:)]?", word)) for word in words) / len(words)


def is_fixed(line, indent):
    """Whether a line of a comment stays as it is typed: a formula, a row of a table, a line of code or of a drawing."""
    words = line.split()
    if re.fullmatch(r"\(.*arXiv.*\)", line):
        return False
    if re.search(r"\S {2,}\S", line) or indent >= 8 or line[0] in "+|" or indent >= 2 and line.count(" | ") > 1:
        return True
    share, signs = told(words), {"=", "+=", "=>", ":=", "=:", "<-", "+", "*", "~"}
    if indent + len(line) > 80:
        return indent >= 2 and share < 0.3
    defined, holds = indent >= 4 and words[1:2] in (["="], ["+="]), set(words) & signs
    return (set(words[:2]) & signs and share < (0.8 if defined else 0.6)) or (
        indent >= 2 and (holds and share < 0.45 or line.endswith((";", "{")) and share < 0.6))


def joined(lines):
    """A drawing of + - | with its lines joined, or None: these lines are no drawing."""
    def has(row, column, signs):
        return 0 <= row < len(lines) and 0 <= column < len(lines[row]) and lines[row][column] in signs

    cells = [(r, c, sign) for r, line in enumerate(lines) for c, sign in enumerate(line)]
    if not any(has(r, c, "|") and has(r + 1, c, "|+") for r, c, _ in cells):
        return None
    grid = [list(line) for line in lines]
    corners = " ╶╷┌╴─┐┬╵└│├┘┴┤┼"  # 1 right, 2 down, 4 left, 8 up
    for r, c, sign in cells:
        right, down, left, up = has(r, c + 1, "-+"), has(r + 1, c, "|+"), has(r, c - 1, "-+"), has(r - 1, c, "|+")
        if sign == "|":
            grid[r][c] = corners[10 + right * up * down + 4 * left * up * down]
        elif sign == "+" and right + down + left + up > 1:
            grid[r][c] = corners[right + 2 * down + 4 * left + 8 * up]
        elif sign == "-" and (has(r, c - 1, "-+|<") or has(r, c + 1, "-+|>")):
            grid[r][c] = "─"
        elif sign == ">" and has(r, c - 1, "-") or sign == "<" and has(r, c + 1, "-"):
            grid[r][c] = "→" if sign == ">" else "←"
    return "\n".join("".join(row) for row in grid)


def ends(before, after):
    """Whether a paragraph ends between two lines of it: one ends early, and what follows begins anew."""
    room = 116 - len(before) - len(after.split()[0])  # of a line of the source
    orphan = len(before.strip()) < 32  # (a few words that did not fit into the line above)
    begins = re.match(r"[A-Z]|[a-z][\w ]{0,18}: ", after) or " | " in before
    return bool(re.match(r"(\d\.|\(\d\)|-|\*|(twins|shapes|order|exactly|in bf16|backward):) |.*\| tests/", after) or
                room > 0 and before.endswith((".", ":")) or
                room > 16 and (before.endswith((";", ")")) or begins and not orphan))


def set_comment(lines, link):
    """A comment, without its slashes, in HTML, and how many columns its widest line of a formula or a drawing has.
    link: the page of a file that a comment names, or None."""
    out, widest, i = [], 0, 0
    indents = [len(line) - len(line.lstrip()) for line in lines]
    fixed = [bool(line.strip()) and is_fixed(line.strip(), indent) for line, indent in zip(lines, indents)]
    while i < len(lines):
        line, indent = lines[i].strip(), indents[i]
        begin = i
        i += 1
        follows = i < len(lines) and lines[i].strip() and not fixed[i]
        term = re.match(r"([A-Z][\w ,-]{1,24}?) {2,}(\S.{30,})", line) if follows and indents[i] > indent else None
        if not line:
            continue
        if line.startswith("---- "):
            out.append(f"<h3>{set_text(line[5:], link)}</h3>")
        elif fixed[begin] and not (term and told(term[2].split()) > 0.4):
            # A blank line between two fixed ones is of the same drawing.
            while i < len(lines) and (fixed[i] or not lines[i].strip() and i + 1 < len(lines) and fixed[i + 1]):
                i += 1
            left = min(indents[k] for k in range(begin, i) if lines[k].strip())
            typed = [one[left:] for one in lines[begin:i]]
            widest = max(widest, *map(len, typed))
            drawing = joined(typed)
            said = html.escape(drawing) if drawing else "\n".join(set_text(one, link, True) for one in typed)
            out.append(f'<pre class="{"drawn" if drawing else "formula"}">{said}</pre>')
        else:
            text = term[2] if term else line
            while i < len(lines) and lines[i].strip() and not fixed[i] and not ends(lines[i - 1], lines[i].strip()):
                text += " " + lines[i].strip()
                i += 1
            inset = f' style="margin-left:{min(indent, 6) / 2}em"' if indent else ""
            said = set_text(text, link)
            out.append(f"<p{inset}>{f'<b>{term[1]}</b> ' if term else ''}{said}</p>")
    return "".join(out), widest
