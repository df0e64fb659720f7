"""Drawing: SVG pictures that any browser opens, and self-contained HTML pages.

- `palette`: the set of colours, light and dark
- `svg`, `html`: elements of the two languages, with escaped texts
- `page`: the frame of every page: head, style sheet, theme, index, script
- `axis`: mapping from values to positions, and the ticks
- `line_chart`: lines over two axes, on a page or as a figure in a file
- `bar_chart`: values with their intervals
- `parallel_coordinates`: a vertical axis for each quantity, a line for each case
- `learning_curves`: a history as line charts
- `graph`: a program as a layered drawing
"""
