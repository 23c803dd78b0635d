"""How Sphinx builds these pages."""

project = "triomq"
author = "the triomq authors"
copyright = "2026, the triomq authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "newsfragments"]
html_theme = "furo"
html_title = "triomq"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
nitpicky = True
# Names of other projects and of private rooms; everything public of ours must resolve.
nitpick_ignore_regex = [
    (r"py:.*", r"trio\..*"),
    (r"py:.*", r"(attrs?|msgspec|typing|collections|abc|ipaddress|ssl|types|pathlib|contextlib|click)(\..*)?"),
    (r"py:.*", r"triomq_protocol\..*"),
    (r"py:.*", r"triomq\._.*"),
    (r"py:.*", r"triomq_server\..*\._.*"),
    (r"py:class", r"(optional|Self|T|H|P|R|Any|Callable|Awaitable|Mapping|Sequence|Iterable|Iterator|TracebackType|[a-z_]+)"),
]
