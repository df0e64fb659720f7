"""Everything that is drawn: SVG pictures that any browser opens, and pages that need nothing else.

palette         the one set of colours, light and dark
svg, html       elements of the two languages, with their texts escaped
page            the frame of every page: head, style sheet, theme, index, script
axis            from values to places, and where the ticks stand
line_chart      lines over two axes, on a page or as a figure in a file
bar_chart       values with their intervals
parallel_coordinates  an upright axis for each quantity, a line for each case
learning_curves a history as line charts
graph           a program as a layered drawing
"""
