"""The documentation as static HTML: pages in Markdown, and a reference from the docstrings.

It needs markdown-it-py and Pygments, which come with rich, a package that Caldera needs anyway.
"""
