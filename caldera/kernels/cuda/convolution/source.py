"""The text of the kernels of convolutions; what they have in common is in implicit_gemm.cuh."""

from __future__ import annotations

from functools import lru_cache

from caldera.kernels.cuda.codegen.dtypes import STORED, computed_type
from caldera.kernels.cuda.product.tiling import Tile

TYPES = """#include "implicit_gemm.cuh"
typedef {stored} T;
typedef {computed} S;
"""
CORRELATE = """
extern "C" __global__ void {bounds} correlate(
    {result}* out, const T* image, const T* filters, Window window, Images images, Filters steps,
    ImagePlaces places, i32 results, Cut cut) {{
    typedef {tile} Block;
    Share mine = cut.of(blockIdx.x, Block::SIDE);
    Patches<T, true> a = {{image + mine.product * images.group, window, images}};
    FilterLines<T> b = {{filters + mine.product * steps.group, window, steps, results}};
    S sums[Block::PER][Block::PER];
    block_product<Block, Way<{left}>, Way<{right}>>(a, b, mine.row, mine.column, mine.begin,
                                                    mine.end, sums);
    i32 rows = window.pixels, columns = results;
    each_result<Block>(mine, rows, columns, [&](int i, int j, i32 row, i32 column) {{
        {store}
    }});
}}
"""
WEIGHT = """
extern "C" __global__ void {bounds} weight(
    {result}* out, const T* image, const T* gradient, Window window, Images images, Images outer,
    FilterPlaces places, i32 results, Cut cut) {{
    typedef {tile} Block;
    Share mine = cut.of(blockIdx.x, Block::SIDE);
    ChannelLines<T> a = {{gradient + mine.product * outer.group, window, outer, results}};
    Patches<T, false> b = {{image + mine.product * images.group, window, images}};
    S sums[Block::PER][Block::PER];
    block_product<Block, Way<{left}>, Way<{right}>>(a, b, mine.row, mine.column, mine.begin,
                                                    mine.end, sums);
    i32 rows = results, columns = window.terms;
    each_result<Block>(mine, rows, columns, [&](int i, int j, i32 row, i32 column) {{
        {store}
    }});
}}
"""
WHOLE = "out[places.of(window, mine.product, row, column)] = Stored<T>::from(sums[i][j]);"
PIECE = """i64 products = gridDim.x / ((u32)cut.across * cut.down * cut.pieces);
        i64 line = (mine.piece * products + mine.product) * rows + row;
        out[line * columns + column] = sums[i][j];"""
ADD_UP = """
extern "C" __global__ void add_up(T* out, const S* terms, i32 pieces, u32 count, Window window,
                                  {places} places, u32 rows, u32 columns) {{
    for (u32 i = first_turn<u32>(); i < count; i += turns_apart<u32>()) {{
        S sum = terms[i];
        for (i32 piece = 1; piece < pieces; piece++) sum += terms[(i64)piece * count + i];
        u32 line = i / columns, column = i - line * columns, group = line / rows;
        out[places.of(window, group, line - group * rows, column)] = Stored<T>::from(sum);
    }}
}}
"""
EACH = """
extern "C" __global__ void each(T* out, const T* image, const T* filters, Window window,
                                Images images, Filters steps, ImagePlaces places, u32 results,
                                u32 groups, i32 tap_rows, i64 count) {{
    i64 index = first_turn<i64>();
    if (index >= count) return;
    u32 all = results * groups, area = window.area.divisor, channel, number;
    if ({last}) {{
        number = (u32)(index / all), channel = (u32)(index - (i64)number * all);
    }} else {{
        u32 plane = (u32)(index / area);
        channel = plane % all, number = plane / all * area + (u32)(index - (i64)plane * area);
    }}
    u32 group = channel / results, own = channel - group * results;
    Pixel pixel = pixel_of(window, number);
    S sum = correlated<S>(image + group * images.group, filters + group * steps.group +
                          own * steps.result, window, images, steps, tap_rows, pixel);
    out[places.of(window, group, number, own)] = Stored<T>::from(sum);
}}
"""
EACH_WEIGHT = """
extern "C" __global__ void each_weight(S* terms, const T* image, const T* gradient, Window window,
                                       Images images, Images outer, u32 results, u32 groups,
                                       i32 span, u32 count) {{
    u32 index = first_turn<u32>();
    if (index >= count) return;
    u32 all = results * groups, result = index % all, rest = index / all;
    u32 number = rest % (u32)window.terms, piece = rest / (u32)window.terms;
    u32 group = result / results;
    Term term = term_of(window, number);
    i32 begin = (i32)piece * span;
    S sum = gathered<S>(image + group * images.group + term.channel * images.channel,
                        gradient + result * outer.channel, window, images, outer, term, begin,
                        min(begin + span, window.pixels));
    terms[((i64)piece * all + result) * window.terms + number] = sum;
}}
"""


def types(dtype: str) -> str:
    return TYPES.format(stored=STORED[dtype], computed=computed_type(dtype))


@lru_cache(maxsize=1024)
def tiles_text(
    kernel: str, dtype: str, tile: Tile, left: tuple[bool, int], right: tuple[bool, int],
    whole: bool,
) -> str:  # fmt: skip
    near = [f"{'true' if along else 'false'}, {many}" for along, many in (left, right)]
    return types(dtype) + kernel.format(
        bounds=tile.bounds(computed_type(dtype)), result="T" if whole else "S", tile=tile.text,
        left=near[0], right=near[1], store=WHOLE if whole else PIECE,
    )  # fmt: skip


@lru_cache(maxsize=1024)
def text(kernel: str, dtype: str, **words: str) -> str:
    return types(dtype) + kernel.format(**words)
