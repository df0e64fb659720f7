"""Code as a language: words of statements, what depends on what, vectors, and questions to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from caldera import code
from caldera.code import corpora
from caldera.errors import CalderaError

LOOP = """
%struct.point = type { double, %struct.inner }
%struct.inner = type { i32, [4 x i8] }

define i32 @sum(ptr nocapture noundef readonly %0, i32 noundef %1) local_unnamed_addr #0 {
  %3 = icmp sgt i32 %1, 0
  br i1 %3, label %4, label %12

4:                                                ; preds = %2, %4
  %5 = phi i64 [ %9, %4 ], [ 0, %2 ]
  %6 = phi i32 [ %8, %4 ], [ 0, %2 ]
  %7 = getelementptr inbounds %struct.point, ptr %0, i64 %5
  %8 = add nsw i32 %6, 7
  %9 = add nuw nsw i64 %5, 1
  %10 = sext i32 %1 to i64
  %11 = icmp eq i64 %9, %10
  br i1 %11, label %12, label %4

12:                                               ; preds = %4, %2
  %13 = phi i32 [ 0, %2 ], [ %8, %4 ]
  ret i32 %13
}

define void @caller(ptr %p) {
  %r = call i32 @sum(ptr noundef nonnull align 8 dereferenceable(16) %p, i32 5)
  switch i32 %r, label %other [
    i32 0, label %zero
    i32 1, label %other
  ]

zero:
  store double 1.500000e+00, ptr %p, align 8
  br label %other

other:
  ret void
}

attributes #0 = { nounwind }
"""


def test_statements_are_words_without_names_and_numbers() -> None:
    sum_, caller = code.read_ir(LOOP)
    assert sum_.name == "sum"
    assert sum_.words == [
        "<%ID> = icmp sgt i32 <%ID>, <INT>",
        "br i1 <%ID>, label <%ID>, label <%ID>",
        "<%ID> = phi i64 [ <%ID>, <%ID> ], [ <INT>, <%ID> ]",
        "<%ID> = phi i32 [ <%ID>, <%ID> ], [ <INT>, <%ID> ]",
        "<%ID> = getelementptr inbounds { double, { i32, [4 x i8] } }, ptr <%ID>, i64 <%ID>",
        "<%ID> = add nsw i32 <%ID>, <INT>",
        "<%ID> = add nuw nsw i64 <%ID>, <INT>",
        "<%ID> = sext i32 <%ID> to i64",
        "<%ID> = icmp eq i64 <%ID>, <%ID>",
        "br i1 <%ID>, label <%ID>, label <%ID>",
        "<%ID> = phi i32 [ <INT>, <%ID> ], [ <%ID>, <%ID> ]",
        "ret i32 <%ID>",
    ]
    assert caller.words == [
        "<%ID> = call i32 <@ID>(ptr <%ID>, i32 <INT>)",
        "switch i32 <%ID>, label <%ID>",
        "store double <FLOAT>, ptr <%ID>, align 8",
        "br label <%ID>",
        "ret void",
    ]


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (
            "%1 = fadd fast <4 x float> %0, splat (float 1.0e0)",
            "<%ID> = fadd fast <4 x float> <%ID>, splat (float <FLOAT>)",
        ),
        ('%"a b" = load i32, ptr @"g", align 4, !tbaa !5', "<%ID> = load i32, ptr <@ID>, align 4"),
        (
            "call void @llvm.memset.p0.i64(ptr align 8 %1, i8 0, i64 16, i1 false)",
            "call void @llvm.memset.p0.i64(ptr <%ID>, i8 <INT>, i64 <INT>, i1 false)",
        ),
        (
            "store double 0x3FF3C0CA428C51F2, ptr %0, align 8",
            "store double <FLOAT>, ptr <%ID>, align 8",
        ),
        (
            "%2 = load float, ptr addrspace(3) %1, align 4",
            "<%ID> = load float, ptr addrspace(3) <%ID>, align 4",
        ),
        (
            "%5 = tail call i32 %4(i32 noundef range(i32 0, 9) %3) #7, !srcloc !3",
            "<%ID> = tail call i32 <%ID>(i32 <%ID>)",
        ),
    ],
)
def test_normalised(given: str, word: str) -> None:
    assert code.normalised(given) == word


def test_structures_of_any_size_and_depth() -> None:
    """Each with two of the one before, and each with one: neither memory nor stack is filled."""
    twice = "".join(f"%t{i} = type {{ %t{i - 1}, %t{i - 1} }}\n" for i in range(1, 60))
    deep = "".join(f"%d{i} = type {{ %d{i - 1} }}\n" for i in range(1, 2000))
    function = (
        "define void @f(ptr %p) {\n  %x = getelementptr %t2, ptr %p, i64 1\n"
        "  %y = getelementptr %t59, ptr %p, i64 1\n  %z = getelementptr %d1999, ptr %p, i64 1\n"
        "  ret void\n}\n"
    )
    text = f"%t0 = type {{ i8 }}\n%d0 = type {{ i8 }}\n{twice}{deep}{function}"
    small, large, deepest, _ = code.read_ir(text)[0].words
    inner = "{ { i8 }, { i8 } }"
    assert small == f"<%ID> = getelementptr {{ {inner}, {inner} }}, ptr <%ID>, i64 <INT>"
    assert max(len(large), len(deepest)) < 20_000


def test_statements_over_several_lines_and_quoted_names() -> None:
    text = """
define void @"a[b"(ptr %p) personality ptr null {
  %"x = y" = load i32, ptr %p, align 4
  invoke void @"a[b"(ptr %p)
          to label %fine unwind label %wrong

fine:
  ret void

wrong:
  %1 = landingpad { ptr, i32 }
          cleanup
          catch ptr null
  resume { ptr, i32 } %1
}
"""
    [function] = code.read_ir(text)
    assert function.words == [
        "<%ID> = load i32, ptr <%ID>, align 4",
        "invoke void <@ID>(ptr <%ID>) to label <%ID> unwind label <%ID>",
        "ret void",
        "<%ID> = landingpad { ptr, i32 } cleanup catch ptr null",
        "resume { ptr, i32 } <%ID>",
    ]
    assert function.statements[0].writes == '%"x = y"'
    call = function.statements[1]
    assert (call.jumps, call.calls) == (("fine", "wrong"), "a[b")
    assert {(1, 2), (1, 3), (0, 1)} <= set(code.flow_edges([function]))


def test_dependences_by_data_and_control() -> None:
    functions = code.read_ir(LOOP)
    edges = set(code.flow_edges(functions))
    # Data: the comparison and its jump, both sides of the loop, what a later block reads.
    assert {(0, 1), (2, 4), (2, 6), (3, 5), (6, 8), (8, 9), (5, 10), (10, 11)} <= edges
    # Control: what reads nothing of its own block hangs on the jumps that lead there.
    assert {(1, 2), (2, 9), (1, 7), (7, 9), (13, 14), (13, 16), (15, 16)} <= edges
    # A call and the function that it calls: where that begins and where it returns.
    assert {(0, 12), (11, 12)} <= edges
    # No edge without a reason.
    assert (0, 4) not in edges
    assert (4, 5) not in edges


def test_pairs_are_those_within_reach() -> None:
    random = np.random.default_rng(0)
    edges = [tuple(sorted(pair)) for pair in random.integers(0, 30, (40, 2)).tolist()]
    edges = sorted({(i, j) for i, j in edges if i != j})
    near = np.eye(30, dtype=bool)
    step = near.copy()
    for i, j in edges:
        step[i, j] = step[j, i] = True
    for context in (1, 2, 3):
        near = (near.astype(int) @ step) > 0
        expected = np.argwhere(near & ~np.eye(30, dtype=bool))
        np.testing.assert_array_equal(code.context_pairs(edges, 30, context), expected)
        # A part of the statements, with all that is near to them, in both directions.
        some = {tuple(pair) for pair in code.context_pairs(edges, 30, context, 0.2).tolist()}
        centres = {a for a, _ in some if sum(x == a for x, _ in some) == near[a].sum() - 1}
        assert some < {tuple(pair) for pair in expected.tolist()}
        assert some == {(b, a) for a, b in some}
        assert all(a in centres or b in centres for a, b in some)


def _many_functions(count: int = 15) -> list[list[code.Function]]:
    """Modules in which each type has its own additions, products and loads."""
    text = []
    for number in range(count):
        for kind, add, mul in (("i32", "add", "mul"), ("double", "fadd", "fmul")):
            text.append(
                f"define {kind} @{kind}_{number}(ptr %p) {{\n  %a = load {kind}, ptr %p, align 8\n"
                f"  %b = {add} {kind} %a, %a\n  %c = {mul} {kind} %b, %a\n  ret {kind} %c\n}}"
            )
    return [code.read_ir("\n".join(text))]


def test_vectors_know_what_stands_together(tmp_path: Path) -> None:
    modules = _many_functions()
    embedding = code.train_embedding(
        modules, width=16, epochs=20, least=2, rate=0.1, sample=0, seed=1
    )
    load, double_load = (f"<%ID> = load {kind}, ptr <%ID>, align 8" for kind in ("i32", "double"))
    add, double_add = "<%ID> = add i32 <%ID>, <%ID>", "<%ID> = fadd double <%ID>, <%ID>"
    assert embedding.similarity(load, add) > embedding.similarity(load, double_add)
    assert embedding.similarity(double_load, double_add) > embedding.similarity(double_load, add)
    assert embedding.nearest(load, 3)[0][1] >= embedding.nearest(load, 3)[1][1]

    again = code.Embedding.load(embedding.save(tmp_path / "vectors.safetensors"))
    assert again.vocabulary.words == embedding.vocabulary.words
    np.testing.assert_array_equal(again.vectors, embedding.vectors)


def test_questions_are_scored() -> None:
    words = [code.Vocabulary.of([]).words[0]] + [
        f"<%ID> = {name}{flag} {kind} <%ID>, <%ID>"
        for name in ("add", "sub", "mul")
        for flag in ("", " nsw")
        for kind in ("i32", "i64")
    ]
    conversions = [
        "<%ID> = sext i32 <%ID> to i64",
        "<%ID> = trunc i64 <%ID> to i32",
        "<%ID> = sext i8 <%ID> to i16",
        "<%ID> = trunc i16 <%ID> to i8",
    ]
    members = [
        f"<%ID> = load {form}, ptr <%ID>, align 8"
        for kind in ("half", "i1")
        for form in (f"<2 x {kind}>", f"[2 x {kind}]", f"{{ {kind}, {kind} }}")
    ]
    everything = [*words, *conversions, *members]
    vocabulary = code.Vocabulary(everything, [1] * len(everything))
    # Vectors in which an operation, a flag and a type each have a direction of their own.
    parts = ("add", "sub", "mul", "nsw", "i32", "i64", "sext", "trunc", "i8", "i16")
    vectors = np.array(
        [[float(part in word.split()) for part in parts] for word in vocabulary.words]
    )
    perfect = code.Embedding(vocabulary, vectors.astype(np.float32))
    scores = code.analogy_scores(perfect)
    assert {kind: score.asked for kind, score in scores.items()} == {
        "types": 12,
        "options": 6,
        "conversions": 7,
        "data structures": 3,
    }
    assert scores["types"].right == 12
    assert scores["options"].right == 6
    rest = np.random.default_rng(0).normal(size=vectors.shape).astype(np.float32)
    random = code.Embedding(vocabulary, rest)
    assert code.analogy_scores(random)["types"].right < 9
    assert code.analogy_scores(random, among=1)["types"].right < 4
    # Each of four additions with the three others, and 18 statements that do something else.
    distance = code.distance_score(perfect)
    assert distance.asked == 3 * 4 * 3 * 18
    assert distance.right > code.distance_score(random).right
    assert str(code.Score(1, 4)) == "1 of 4 (25.00%)"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: code.read_ir("define i32 @f( {\n"), "LLVM IR in the form of text"),
        (lambda: code.read_ir("nowhere.ll"), "a file of LLVM IR"),
        (lambda: code.read_ir("; \udcff\n"), "LLVM IR in the form of text"),
        (lambda: code.Vocabulary.of(["a", ("b",)]), "statements: strings"),
        (lambda: code.context_pairs([], 3, 0), "context="),
        (lambda: code.context_pairs([(0, 3)], 3), "0 to 2, got 0 to 3"),
        (lambda: code.context_pairs([], 3, share=0.0), "share="),
        (lambda: code.train_embedding([code.read_ir(LOOP)], least=100), "lower least="),
        (
            lambda: code.Embedding(code.Vocabulary.of(["a", "b"], 1), np.zeros((2, 3))),
            "each of 3 words",
        ),
        (
            lambda: code.Embedding(code.Vocabulary.of(["a", "b"], 1), np.eye(3))["c"],
            "code.normalised",
        ),
        (lambda: code.Vocabulary(["a"], [1]), "begin with"),
        (lambda: code.compile_c("nowhere.c"), "clang"),
    ],
)
def test_bad_input_is_named(call: Callable[[], object], said: str) -> None:
    with pytest.raises(CalderaError, match=said):
        call()


def test_c_is_compiled_and_read(tmp_path: Path) -> None:
    try:
        code.llvm_ir.find_clang()
    except CalderaError as error:
        pytest.skip(str(error))
    source = tmp_path / "twice.c"
    source.write_text("int twice(int x) { return x + x; }")
    [function] = code.read_ir(code.compile_c(source, flags=["-O1"]))
    assert function.name == "twice"
    assert function.words[-1] == "ret i32 <%ID>"
    source.write_text("int twice(int x) { return y; }")
    with pytest.raises(CalderaError, match=r"a C file that clang compiles, got .*undeclared"):
        code.compile_c(source)


# --- corpora


def test_poj104_as_its_authors_give_it_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for problem in (1, 2, 104):
        place = tmp_path / "ProgramData" / str(problem)
        place.mkdir(parents=True)
        for number in range(1, 11):
            # Comments are in GBK, and there are no headers.
            source = b"int main() { int n; cin >> n; } // \xd0\xa1\n"
            (place / f"{number}.txt").write_bytes(source)
    (tmp_path / "ProgramData" / "readme.txt").write_text("")
    found = code.poj104(tmp_path)
    assert found == code.poj104(tmp_path / "ProgramData")
    assert sorted({each.problem for each in found}) == [1, 2, 104]
    parts = [each.part for each in found if each.problem == 104]
    assert [parts.count(name) for name in ("train", "validation", "test")] == [6, 2, 2]
    assert [each.part for each in code.poj104(tmp_path, seed=1)] != [each.part for each in found]
    given: list[tuple[bytes, Sequence[str]]] = []

    def compiled(path: Path, flags: Sequence[str]) -> str:
        given.append((path.read_bytes(), flags))
        return LOOP

    monkeypatch.setattr(corpora, "compile_c", compiled)
    assert next(each.name for each in found[0].functions(["-O2"])) == "sum"
    assert given[0][0].startswith(b"#include <cstdio>\n")
    assert given[0][0].endswith(found[0].path.read_bytes())
    assert given[0][1] == ["-std=c++11", "-O2"]


def test_poj104_as_inst2vec_divides_it(tmp_path: Path) -> None:
    for part, numbers in (("ir_train", (3, 12)), ("ir_val", (5,)), ("ir_test", (7,))):
        (tmp_path / part / "9").mkdir(parents=True)
        for number in numbers:
            (tmp_path / part / "9" / f"{number}_O1.ll").write_text(LOOP)
            (tmp_path / part / "9" / f"{number}_O1_seq.rec").write_bytes(b"\0\0\0\0")
    found = code.poj104(tmp_path)
    assert [(each.path.name, each.part) for each in found] == [
        ("3_O1.ll", "train"),
        ("12_O1.ll", "train"),
        ("5_O1.ll", "validation"),
        ("7_O1.ll", "test"),
    ]
    assert {each.problem for each in found} == {9}
    assert next(each.name for each in found[0].functions()) == "sum"
    with pytest.raises(CalderaError, match=r"expected ProgramData/PROBLEM/\*\.txt"):
        code.poj104(tmp_path / "ir_train" / "9")
