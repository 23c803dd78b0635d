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
# Names of other projects and of private modules; everything else that is public must resolve.
nitpick_ignore_regex = [
    (
        r"py:.*",
        r"(trio|attrs?|msgspec|typing|collections|abc|ipaddress|ssl|types|pathlib|contextlib|random|os|re|datetime)\..*",
    ),
    (r"py:.*", r"triomq_protocol\..*"),
    (r"py:.*", r"triomq\._.*"),
    # Arguments of constructors that the fixtures call.
    (r"py:class", r"(Calls|ClockHand|Cluster|SharedClient|SteeredClock|Weaknesses)"),
    # an alias and a type variable, of which Sphinx knows no class
    (r"py:class", r"NameServers|T"),
    # in constructors that only our own code calls: of what is made per message
    (r"py:class", r"(ConsumeHooks|Dispatch|HeldMessage|Namespace|RecordView|Sender|TagFilter)"),
    # bounds of numbers in annotations
    (r"py:class", r"[gl]e=-?\d+"),
    # napoleon takes the words before a colon for a type
    (r"py:class", r"[A-Z][a-z' ]+( [a-z' ]+)+"),
    (r"py:attr", r"[A-Z_]+"),
]
