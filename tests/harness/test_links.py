# SPDX-License-Identifier: GPL-2.0
"""The links of the documents: in the source tree, as a forge's web page shows it, and in the built HTML."""

import html.parser
import os
import re
import shutil
import urllib.parse

import docutils.core
import docutils.nodes
import pytest


class Rst:
    """A document as a forge shows it: docutils alone, without Sphinx's roles and directives."""

    def __init__(self, text):
        tree = docutils.core.publish_doctree(text, settings_overrides={"report_level": 5, "halt_level": 5, "file_insertion_enabled": False})
        self.links = [node["refuri"] for node in tree.findall(docutils.nodes.reference) if "refuri" in node]
        self.links += [node["uri"] for node in tree.findall(docutils.nodes.image)]
        self.anchors = {name for node in tree.findall(docutils.nodes.Element) for name in node.get("ids", ())}
        self.unknown = [node.astext() for node in tree.findall(docutils.nodes.problematic)]


class Markdown:
    """Likewise, of what the README uses: links and headings."""

    def __init__(self, text):
        text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.M | re.S)
        headings = [re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", line) for line in re.findall(r"^#+ +(.*?) *#*$", text, re.M)]
        slugs = [re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in headings]
        self.anchors = {slug + (f"-{slugs[:i].count(slug)}" if slug in slugs[:i] else "") for i, slug in enumerate(slugs)}
        self.anchors |= set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
        text = re.sub(r"^(    |\t).*", "", text, flags=re.M)
        text = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "code", text, flags=re.S)
        self.links = re.findall(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)", text)
        self.links += re.findall(r"^ ? ? ?\[[^]]+\]:\s+<?([^\s>]+)", text, re.M)
        self.links += re.findall(r'<(?:a|img)\b[^>]*\b(?:href|src)="([^"]+)"', text)
        self.unknown = []


class Html(html.parser.HTMLParser):
    """A built page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors, self.unknown = [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for key, value in attrs:
            if value and (key, tag) in (("href", "a"), ("src", "img"), ("href", "link"), ("src", "script")):
                self.links.append(value)
            elif value and (key == "id" or (key, tag) == ("name", "a")):
                self.anchors.add(value)


KINDS = {".rst": Rst, ".md": Markdown, ".html": Html}


def faults(root, pages):
    """The dead links of these pages, as (page, link), and the markup that nobody knows. All links lead into root, or to other sites."""
    parsed = {}

    def page(path):
        if path not in parsed:
            parsed[path] = KINDS[path.suffix](path.read_text())
        return parsed[path]

    def dead(path, link):
        parts = urllib.parse.urlsplit(link)
        if parts.scheme or parts.netloc:
            return False
        target = path
        if parts.path:
            # a link that begins with / leads to the top of a site, not of the repository
            target = path.parent / os.path.normpath(path.parent / urllib.parse.unquote(parts.path))
            if parts.path.startswith("/") or not target.is_relative_to(root) or not target.exists():
                return True
        return bool(parts.fragment) and (target.suffix not in KINDS or urllib.parse.unquote(parts.fragment) not in page(target).anchors)

    found = [(path, link) for path in pages for link in page(path).links if dead(path, link)]
    found += [(path, text) for path in pages for text in page(path).unknown]
    return sorted((str(path.relative_to(root)), text) for path, text in found)


def none(found):
    assert not found, "dead links:\n" + "\n".join(f"{page}: {link}" for page, link in found)


def sources(top):
    documents = sorted((top / "Documentation").rglob("*.rst"))
    return documents + [top / name for name in ("README.md", "CHANGELOG.md", "Documentation/results/README.md") if (top / name).exists()]


def build(run, top, to):
    """The built pages. Without -W: the links tell more than the first warning."""
    run("/usr/bin/python3", "-m", "sphinx", "-q", "-b", "html", "-d", to / "doctrees", top / "Documentation", to / "html")
    return to / "html", sorted((to / "html").rglob("*.html"))


def test_links_in_the_source_tree(top):
    pages = sources(top)
    assert len(pages) >= 6
    none(faults(top, pages))


def test_links_in_the_built_pages(run, top, tmp_path):
    root, pages = build(run, top, tmp_path)
    pages = [path for path in pages if root / "files" not in path.parents]  # copies, not pages
    assert len(pages) >= 6
    none(faults(root, pages))


GOOD = {
    "README.md": "# Read me\n\n## Two `ways`: a & b\n\n"
                 "[a](Documentation/one.rst#a-heading) [b](#two-ways-a--b) [c](https://example.com/x)\n"
                 "[patches](patches) `[code](gone)`\n\n    [code](gone)\n",
    "patches/0001.patch": "patch\n",
    "Documentation/index.rst": "Title\n=====\n\n* `One <one.rst>`__\n\n.. toctree::\n   :hidden:\n\n   one\n   sub/two\n",
    "Documentation/one.rst": "One\n===\n\nA heading\n---------\n\n`here`__, `A heading`_, `table <results/x/table.txt>`__,\n"
                             "`patch <../patches/0001.patch>`__, `all <../patches/>`__, "
                             "`two <sub/two.rst#below>`__, `read <../README.md#read-me>`__\n\n__ one.rst#a-heading\n",
    "Documentation/sub/two.rst": "Two\n===\n\nBelow\n-----\n\n`up <../one.rst>`__ `table <../results/x/table.txt>`__\n",
    "Documentation/results/x/table.txt": "1\n",
}

# what is added to a file, and the fault in the source tree and in the built pages
DEAD = [
    ("README.md", "[x](gone.md)", ("README.md", "gone.md"), None),
    ("README.md", "[x](Documentation/one.rst#gone)", ("README.md", "Documentation/one.rst#gone"), None),
    ("README.md", "[x](#gone)", ("README.md", "#gone"), None),
    ("README.md", '<img src="gone.svg">', ("README.md", "gone.svg"), None),
    ("README.md", "[x](../outside)", ("README.md", "../outside"), None),
    ("Documentation/one.rst", "`x <gone.rst>`__", ("Documentation/one.rst", "gone.rst"), ("one.html", "gone.rst")),
    ("Documentation/one.rst", "`x <results/gone>`__", ("Documentation/one.rst", "results/gone"), ("one.html", "results/gone")),
    ("Documentation/one.rst", "`x <sub/two.rst#gone>`__", ("Documentation/one.rst", "sub/two.rst#gone"), ("one.html", "sub/two.html#gone")),
    ("Documentation/sub/two.rst", "`x <../../gone>`__", ("Documentation/sub/two.rst", "../../gone"), ("sub/two.html", "../../gone")),
    ("Documentation/one.rst", ":doc:`sub/two`", ("Documentation/one.rst", ":doc:`sub/two`"), None),  # no forge knows the role
]


@pytest.mark.parametrize("file, text, in_source, in_html", [(None, "", None, None), *DEAD])
def test_a_dead_link_is_found(run, top, tmp_path, file, text, in_source, in_html):
    repo = tmp_path / "repo"
    for name, content in GOOD.items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(content + (f"\n{text}\n" if name == file else ""))
    shutil.copy(top / "Documentation/conf.py", repo / "Documentation")
    (tmp_path / "outside").touch()
    assert faults(repo, sources(repo)) == ([in_source] if in_source else [])
    if file != "README.md":
        root, pages = build(run, repo, tmp_path)
        assert faults(root, pages) == ([in_html] if in_html else [])
