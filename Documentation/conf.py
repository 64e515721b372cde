# SPDX-License-Identifier: GPL-2.0
# Sphinx configuration: python3 -m sphinx -W -b html Documentation DIRECTORY
import os
import shutil

from docutils import nodes
from sphinx.util import logging

project = "Task stealing for the Linux fair scheduler"
extensions = []
exclude_patterns = []
html_theme = "alabaster"


def rewrite_links(app, doctree, docname):
    """The documents link to files of the source tree, as a forge's web page needs it: `design.rst`, `../README.md`.

    In the built pages, a link to a document leads to its page. Any other file is copied to files/ beside the pages, under its
    path from the top of the repository, and the link leads to the copy. The same goes for a directory.
    """
    if app.builder.format != "html":
        return
    top = os.path.dirname(app.srcdir)
    for node in doctree.findall(nodes.reference):
        uri, sharp, anchor = node.get("refuri", "").partition("#")
        if not uri or ":" in uri or node.get("internal"):
            continue  # a place on this page, another site, or a link that Sphinx made
        path = os.path.normpath(os.path.join(os.path.dirname(app.env.doc2path(docname)), uri))
        document, extension = os.path.splitext(os.path.relpath(path, app.srcdir))
        if extension == ".rst" and document in app.env.found_docs:
            node["refuri"] = app.builder.get_relative_uri(docname, document) + sharp + anchor
        elif os.path.exists(path):
            copy = os.path.join("files", os.path.relpath(path, top))
            os.makedirs(os.path.dirname(os.path.join(app.outdir, copy)), exist_ok=True)
            if os.path.isdir(path):
                shutil.copytree(path, os.path.join(app.outdir, copy), dirs_exist_ok=True)
            else:
                shutil.copy(path, os.path.join(app.outdir, copy))
            node["refuri"] = os.path.relpath(copy, os.path.dirname(docname) or ".") + sharp + anchor
        else:
            logging.getLogger(__name__).warning("link to a file that does not exist: %s", uri, location=node)


def setup(app):
    app.connect("doctree-resolved", rewrite_links)
