"""Pictures: valid SVG in which nothing overlaps, everything fits and every promise is kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

import caldera as cd
from caldera import op
from caldera.core.graph.program import Program, program_of
from caldera.draw.graph import draw_graph, graph_svg
from caldera.draw.svg import DTYPE_COLOURS, text_width
from caldera.errors import ConfigError
from tests.unit.draw.boxes import Box

SVG = "{http://www.w3.org/2000/svg}"
Element = ElementTree.Element


# --- programs to draw


def tour() -> cd.Plan:
    x, w, b = op.var("X", (5, 3)), op.var("W", (6, 5)), op.var("b", (6, 3))
    y = w @ x + b
    return cd.compile([y, *op.grad(op.sum(y * y), [w, b])])


def training(layers: int = 4) -> cd.Plan:
    x, target, rate = op.input("x", (8, 16)), op.input("target", (8, 16)), op.input("rate", ())
    parameters = []
    h: cd.Expr = x
    for i in range(layers):
        w, b = op.var(f"w{i}", (16, 16)), op.var(f"b{i}", (16,))
        parameters += [w, b]
        h = op.relu(h @ w + b)
    loss = op.sum(op.square(h - target))
    gradients = op.grad(loss, parameters)
    updates = [op.assign(p, p - rate * g) for p, g in zip(parameters, gradients, strict=True)]
    return cd.compile([loss, *updates])


def chain(count: int = 200) -> cd.Plan:
    x = op.var("x", (4, 4))
    h: cd.Expr = x
    for i in range(count):
        h = (op.sin(h), h * 1.01, h + x)[i % 3]
    return cd.compile([h])


def fan() -> cd.Plan:
    """One value with many readers, and results of all kinds."""
    x = op.var("x", (3,))
    y = op.exp(x)
    parts = [y * float(i) for i in range(30)]
    return cd.compile([*parts, x, y, y, op.assign(x, y)])


def mixed() -> cd.Plan:
    """Several dtypes, several outputs, a loop, data."""
    x = op.var("x", (6, 4), dtype="float16")
    i = op.var("i", (6, 1), dtype="int64")
    wide = op.cast(op.cast(x, "bfloat16") * 2.0, "float64")
    chosen = op.where(wide > 0.0, wide, op.cast(i, "float64"))
    a, b = op.split(chosen, 2, axis=1)
    r = op.var("r", (2, 2), dtype="float64")

    def step(carry: cd.Expr, row: cd.Expr) -> tuple[cd.Expr, cd.Expr]:
        carry = op.tanh(carry @ r + row)
        return carry, carry * 2.0

    start = op.cast(op.broadcast(0.0, (1, 2)), "float64")
    last, rows = op.scan(step, start, op.reshape(a, (6, 1, 2)))
    return cd.compile([last, rows, b + cd.Tensor((6, 2), dtype="float64"), op.assign(i, i + 1)])


PLANS: dict[str, Callable[[], cd.Plan]] = {
    "tour": tour,
    "training": training,
    "chain": chain,
    "fan": fan,
    "mixed": mixed,
}


def svg_of(plan: cd.Plan) -> str:
    return graph_svg({"as written": plan.original, "as it runs": plan.optimised})


@pytest.fixture(scope="module", params=PLANS)
def drawn(request: pytest.FixtureRequest) -> Element:
    return ElementTree.fromstring(svg_of(PLANS[request.param]()))


# --- reading pictures


def classes(element: Element) -> list[str]:
    return element.get("class", "").split()


def panels(root: Element) -> list[Element]:
    return [child for child in root if "panel" in classes(child)]


def outer_marks(panel: Element) -> list[Element]:
    """The marks that stand in no group."""
    found = []
    for child in panel:
        mark = child[0] if child.tag == f"{SVG}a" else child
        if "mark" in classes(mark):
            found.append(mark)
    return found


def inner_marks(mark: Element) -> list[Element]:
    return [child for child in mark if "mark" in classes(child)]


def with_role(root: Element, role: str) -> list[Element]:
    return [g for g in root.iter(f"{SVG}g") if {"mark", role} <= set(classes(g))]


def box(shape: Element) -> Box:
    if shape.tag == f"{SVG}polygon":
        corners = [tuple(map(float, c.split(","))) for c in shape.get("points", "").split()]
        xs, ys = [x for x, _ in corners], [y for _, y in corners]
        return Box(min(xs), min(ys), max(xs), max(ys))
    x, y, width, height = (float(shape.get(k, "0")) for k in ("x", "y", "width", "height"))
    return Box(x, y, x + width, y + height)


def box_of(mark: Element) -> Box:
    return box(next(child for child in mark if "shape" in classes(child)))


def texts(element: Element) -> list[str]:
    return [text.text or "" for text in element.iter(f"{SVG}text")]


def own_texts(mark: Element) -> Iterator[tuple[str, Box]]:
    """The words of a mark with the room they take."""
    for child in mark:
        if child.tag != f"{SVG}text":
            continue
        size, x, y = (float(child.get(k, "")) for k in ("font-size", "x", "y"))
        words = child.text or ""
        mono, bold = "detail" in classes(child), "bold" in classes(child)
        width = text_width(words, size, bold=bold, mono=mono)
        left = {"start": x, "middle": x - width / 2, "end": x - width}[child.get("text-anchor", "")]
        yield words, Box(left, y - 0.75 * size, left + width, y + 0.2 * size)


# --- every picture


def test_panels_stand_side_by_side_under_their_titles(drawn: Element) -> None:
    written, runs = panels(drawn)
    assert "as written" in texts(written)
    assert "as it runs" in texts(runs)
    left, right = (box(next(c for c in p if "card" in classes(c))) for p in (written, runs))
    assert left.right < right.left
    assert left.top == right.top
    page = Box(0, 0, float(drawn.get("width", "0")), float(drawn.get("height", "0")))
    assert page.holds(left)
    assert page.holds(right)


def test_marks_do_not_overlap(drawn: Element) -> None:
    for panel in panels(drawn):
        card = box(next(child for child in panel if "card" in classes(child)))
        boxes = [box_of(mark) for mark in outer_marks(panel)]
        assert all(card.holds(each) for each in boxes)
        boxes.sort(key=lambda each: each.top)
        for index, first in enumerate(boxes):
            for second in boxes[index + 1 :]:
                if second.top > first.bottom:
                    break
                assert not first.overlaps(second)


def test_words_fit_into_their_shapes(drawn: Element) -> None:
    for mark in drawn.iter(f"{SVG}g"):
        if "mark" in classes(mark):
            for words, room in own_texts(mark):
                assert box_of(mark).holds(room, slack=1.0), words


def test_words_of_one_mark_do_not_overlap(drawn: Element) -> None:
    for mark in drawn.iter(f"{SVG}g"):
        if "mark" in classes(mark):
            rooms = [room for _, room in own_texts(mark)]
            assert not any(a.overlaps(b) for i, a in enumerate(rooms) for b in rooms[i + 1 :])


def test_groups_hold_their_parts(drawn: Element) -> None:
    for group in with_role(drawn, "group"):
        parts = inner_marks(group)
        assert parts
        boxes = [box_of(part) for part in parts]
        assert all(box_of(group).holds(each) for each in boxes)
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


def test_arrows_lead_down_from_mark_to_mark(drawn: Element) -> None:
    for panel in panels(drawn):
        boxes = [box_of(mark) for mark in outer_marks(panel)]
        for arrow in [child for child in panel if "arrow" in classes(child)]:
            numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*", arrow.get("d", ""))]
            heights = numbers[1::2]
            assert heights == sorted(heights)
            start, end = (numbers[0], numbers[1]), (numbers[-2], numbers[-1])
            assert any(_touches(each.bottom, each, start) for each in boxes)
            assert any(_touches(each.top, each, end) for each in boxes)


def _touches(edge: float, each: Box, point: tuple[float, float]) -> bool:
    return abs(edge - point[1]) < 1.0 and each.left - 1 <= point[0] <= each.right + 1


def test_links_lead_to_marks_that_exist(drawn: Element) -> None:
    names = {element.get("id") for element in drawn.iter() if element.get("id")}
    links = [link.get("href", "") for link in drawn.iter(f"{SVG}a")]
    assert all(link.startswith("#") and link[1:] in names for link in links)


def test_the_file_needs_nothing_else(drawn: Element) -> None:
    tags = {element.tag.removeprefix(SVG) for element in drawn.iter()}
    assert tags <= {
        "svg",
        "style",
        "defs",
        "marker",
        "path",
        "rect",
        "g",
        "a",
        "text",
        "title",
        "circle",
        "polygon",
    }


# --- what is in them


def test_every_node_and_result_of_a_small_program_is_drawn() -> None:
    written, runs = panels(ElementTree.fromstring(svg_of(tour())))
    labels = [words[0] for words in (texts(mark) for mark in outer_marks(written)) if words]
    for expected in ("W", "X", "b", "matmul", "add", "matmul ABᵀ", "output 0", "output 2"):
        assert expected in labels
    assert "(6, 3)" in texts(written)
    assert with_role(runs, "group")


def test_matrix_products_are_heavier() -> None:
    root = ElementTree.fromstring(svg_of(tour()))
    products = with_role(root, "product")
    assert len(products) == 4
    for product in products:
        label = next(text for text in product if "label" in classes(text))
        assert "bold" in classes(label)
        shape = next(child for child in product if "shape" in classes(child))
        assert shape.get("fill") == shape.get("stroke")


def test_colours_stand_for_precision_and_are_in_the_legend() -> None:
    root = ElementTree.fromstring(svg_of(mixed()))
    legend = {
        words: child[0].get("stroke")
        for child in root
        if "legend" in classes(child)
        for words in texts(child)
    }
    for ink in DTYPE_COLOURS:
        assert legend[ink.name] == ink.strong
    assert len({ink.strong for ink in DTYPE_COLOURS}) == len(DTYPE_COLOURS)
    of_label = {
        next(iter(texts(mark)), ""): box_shape.get("stroke")
        for mark in outer_marks(panels(root)[0])
        for box_shape in mark
        if "shape" in classes(box_shape)
    }
    assert of_label["x"] == legend["float16"]
    assert of_label["cast bfloat16"] == legend["bfloat16"]
    assert of_label["where"] == legend["float64"]
    assert of_label["i"] == legend["integers"]
    assert of_label["greater"] == legend["bool"]


def test_leaves_have_shapes_of_their_own() -> None:
    root = ElementTree.fromstring(svg_of(training()))
    (rate,) = [m for m in with_role(panels(root)[0], "input") if texts(m)[0] == "rate"]
    assert next(c for c in rate if "shape" in classes(c)).tag == f"{SVG}polygon"
    variables = {texts(mark)[0] for mark in with_role(panels(root)[0], "variable")}
    assert variables == {f"{kind}{i}" for kind in "wb" for i in range(4)}
    constants = with_role(ElementTree.fromstring(svg_of(chain(6))), "constant")
    assert {texts(mark)[0] for mark in constants} == {"1.01"}


def test_updates_and_outputs_are_marked() -> None:
    root = ElementTree.fromstring(svg_of(training()))
    updates = {texts(mark)[0] for mark in with_role(panels(root)[1], "update")}
    assert updates == {f"update {kind}{i}" for kind in "wb" for i in range(4)}
    assert [texts(mark)[0] for mark in with_role(panels(root)[1], "output")] == ["output 0"]


def test_a_fused_group_shows_its_ops_and_numbers() -> None:
    x = op.var("x", (3,))
    plan = cd.compile([op.relu(op.exp(x) * 2.0 - 1.0)])
    _, runs = panels(ElementTree.fromstring(svg_of(plan)))
    (group,) = with_role(runs, "group")
    assert [texts(part)[0] for part in inner_marks(group)] == ["exp", "mul 2", "sub 1", "relu"]
    assert texts(group)[0] == "fused, 4 ops"


def test_a_long_body_is_listed() -> None:
    _, runs = panels(ElementTree.fromstring(svg_of(chain(30))))
    (group,) = with_role(runs, "group")
    assert len(inner_marks(group)) == 30


def test_loops_show_their_body() -> None:
    written, runs = panels(ElementTree.fromstring(svg_of(mixed())))
    (loop,) = [g for g in with_role(written, "group") if texts(g)[0] == "scan, 6 steps"]
    assert {"matmul", "add", "tanh", "mul 2"} <= {texts(part)[0] for part in inner_marks(loop)}
    nested = [inner for g in with_role(runs, "group") for inner in inner_marks(g)]
    assert any("product" in classes(inner) for inner in nested)


def test_values_used_far_below_are_drawn_again() -> None:
    root = ElementTree.fromstring(svg_of(training(8)))
    again = [texts(mark)[0] for mark in with_role(panels(root)[0], "again")]
    assert "w3" in again
    assert any(re.fullmatch(r"#\d+ relu", words) for words in again)
    badges = {words for mark in outer_marks(panels(root)[0]) for words in texts(mark)}
    assert all(words.split()[0] in badges for words in again if words.startswith("#"))


def test_tall_graphs_are_folded() -> None:
    root = ElementTree.fromstring(svg_of(chain(200)))
    assert float(root.get("height", "0")) < 3000
    assert float(root.get("width", "0")) < 4000


def test_only_the_first_of_very_many_nodes_are_drawn() -> None:
    root = ElementTree.fromstring(svg_of(chain(600)))
    written = panels(root)[0]
    assert "the first 400 of 601 nodes are drawn" in texts(written)
    assert len([m for m in outer_marks(written) if "operation" in classes(m)]) == 399


def test_counts_and_estimates_stand_above_each_panel() -> None:
    written, runs = panels(ElementTree.fromstring(svg_of(chain(30))))
    assert "32 nodes: 2 leaves, 30 ops" in texts(written)
    assert "2 nodes: 1 leaf, 1 op" in texts(runs)
    assert any(words.startswith("about") and "FLOP" in words for words in texts(runs))


def test_names_cannot_break_the_file() -> None:
    names = ["a<b>&\"'", "</text><script>alert(1)</script>", "tab\tnull\0", "ὄνομα 名前", "]]>", ""]
    total = op.sum(op.concat([op.var(name, (2,)) for name in names]))
    root = ElementTree.fromstring(svg_of(cd.compile([total])))
    labels = {texts(mark)[0] for mark in with_role(panels(root)[0], "variable")}
    assert "a<b>&\"'" in labels
    assert "ὄνομα 名前" in labels
    assert "variable" in labels
    assert not list(root.iter(f"{SVG}script"))


def test_long_names_are_cut_and_kept_in_the_tooltip() -> None:
    name = "encoder/block/attention/query/projection/weight"
    root = ElementTree.fromstring(svg_of(cd.compile([op.exp(op.var(name, (2,)))])))
    (mark,) = with_role(panels(root)[0], "variable")
    assert texts(mark)[0].endswith("…")
    assert f"{name} (2,) float32" in (mark.findtext(f"{SVG}title") or "")


def test_tooltips_have_attributes_and_operations() -> None:
    root = ElementTree.fromstring(svg_of(tour()))
    tips = [mark.findtext(f"{SVG}title") or "" for mark in with_role(root, "product")]
    assert any("matmul(W, X) (6, 3) float32" in tip and "180 FLOP" in tip for tip in tips)
    assert any("tb = True" in tip for tip in tips)


def test_the_same_program_gives_the_same_picture() -> None:
    assert svg_of(training()) == svg_of(training())


def test_a_program_that_is_a_leaf_or_a_number() -> None:
    x = op.var("x", (2,))
    for program in (Program((x.node,)), program_of([(x * 0.0 + 1.0).node]), Program(())):
        assert len(panels(ElementTree.fromstring(graph_svg({"only": program})))) == 1
    number = op.cast(op.broadcast(3.0, (2,)), "float32").node
    assert "3" in texts(ElementTree.fromstring(graph_svg({"only": Program((number,))})))


# --- files


def test_draw_writes_the_picture_and_returns_its_path(tmp_path: Path) -> None:
    plan = tour()
    assert plan.draw(tmp_path / "graph.svg") == tmp_path / "graph.svg"
    assert plan.draw(str(tmp_path / "upper.SVG")) == tmp_path / "upper.SVG"
    assert (tmp_path / "graph.svg").read_text(encoding="utf-8") == svg_of(plan)


@pytest.mark.parametrize("name", ["graph.png", "graph", "graph.svg.gz"])
def test_only_svg_files_are_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"ends in \.svg.*graph"):
        draw_graph(tmp_path / name, {"only": tour().original})
    assert not list(tmp_path.iterdir())


def test_no_folder_is_made_silently(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a folder that exists.*make it first"):
        tour().draw(tmp_path / "new" / "graph.svg")
    assert not list(tmp_path.iterdir())
