# SPDX-License-Identifier: GPL-2.0
# Sphinx configuration: python3 -m sphinx -W -b html Documentation DIRECTORY
project = "Task stealing for the Linux fair scheduler"
extensions = []
exclude_patterns = []
html_theme = "alabaster"
