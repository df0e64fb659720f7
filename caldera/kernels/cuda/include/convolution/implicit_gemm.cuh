// Convolutions as products of matrices that are never written down: pixels of the result along one
// side, and along the other the terms that each of them is the sum of, in the order tap row, tap
// column, channel. Groups are separate products.
#pragma once
#include "tiled_product.cuh"

// Which image pixel the term of an output pixel lies at.
struct Window {
    Divider area, width;      // from a pixel to its image and its row
    Divider channels, taps;   // from a term to its tap and its row of taps
    i32 pixels, terms;
    i32 source_height, source_width;
    i32 stride_y, stride_x, dilation_y, dilation_x, start_y, start_x;
};

struct Pixel { i32 image, y, x; };
struct Term { i32 row, column, channel; };

__device__ __forceinline__ Pixel pixel_of(const Window& window, i32 number) {
    Pixel found;
    found.image = window.area.quotient(number);
    i32 rest = number - found.image * (i32)window.area.divisor;
    found.y = window.width.quotient(rest);
    found.x = rest - found.y * (i32)window.width.divisor;
    return found;
}

__device__ __forceinline__ Term term_of(const Window& window, i32 number) {
    Term found;
    i32 tap = window.channels.quotient(number);
    found.channel = number - tap * (i32)window.channels.divisor;
    found.row = window.taps.quotient(tap);
    found.column = tap - found.row * (i32)window.taps.divisor;
    return found;
}

// Distances between elements of images, and between those of filters.
struct Images {
    i64 image, channel, row, column, group;
    __device__ __forceinline__ i64 at(Pixel pixel) const {
        return pixel.image * image + pixel.y * row + pixel.x * column;
    }
};
struct Filters {
    i64 result, channel, row, column, group;
    __device__ __forceinline__ i64 at(Term term) const {
        return term.row * row + term.column * column + term.channel * channel;
    }
};

// --- sources of products

// What the pixels see. BY_PIXEL: a line for each pixel; else a line for each term.
template <typename T, bool BY_PIXEL> struct Patches {
    const T* start;
    const Window& window;
    const Images& steps;

    template <int N, typename S>
    __device__ __forceinline__ void read(i32 line, i32 step, S* to) const {
        i32 number = BY_PIXEL ? line : step, which = BY_PIXEL ? step : line;
        Pixel pixel = pixel_of(window, number);
        Term term = term_of(window, which);
        i32 y = pixel.y * window.stride_y + term.row * window.dilation_y + window.start_y;
        i32 x = pixel.x * window.stride_x + term.column * window.dilation_x + window.start_x;
        bool inside = number < window.pixels && which < window.terms &&
                      (u32)y < (u32)window.source_height && (u32)x < (u32)window.source_width;
        if (inside)
            read_pack<N>(start + pixel.image * steps.image + y * steps.row + x * steps.column +
                             term.channel * steps.channel, to);
        else
            read_nothing<N>(to);
    }
};

// A line for each filter.
template <typename T> struct FilterLines {
    const T* start;
    const Window& window;
    const Filters& steps;
    i32 lines;

    template <int N, typename S>
    __device__ __forceinline__ void read(i32 line, i32 step, S* to) const {
        if (line < lines && step < window.terms)
            read_pack<N>(start + line * steps.result + steps.at(term_of(window, step)), to);
        else
            read_nothing<N>(to);
    }
};

// A line for each channel of images, along whose pixels is summed.
template <typename T> struct ChannelLines {
    const T* start;
    const Window& window;
    const Images& steps;
    i32 lines;

    template <int N, typename S>
    __device__ __forceinline__ void read(i32 line, i32 step, S* to) const {
        if (line < lines && step < window.pixels)
            read_pack<N>(start + line * steps.channel + steps.at(pixel_of(window, step)), to);
        else
            read_nothing<N>(to);
    }
};

// --- where results lie: rows and columns of products, which are groups

struct ImagePlaces {
    Images steps;
    __device__ __forceinline__ i64 of(const Window& window, i32 group, i32 row, i32 column) const {
        return group * steps.group + steps.at(pixel_of(window, row)) + column * steps.channel;
    }
};
struct FilterPlaces {
    Filters steps;
    __device__ __forceinline__ i64 of(const Window& window, i32 group, i32 row, i32 column) const {
        return group * steps.group + row * steps.result + steps.at(term_of(window, column));
    }
};

// `visit(i, j, row, column)` for each result that a thread of a tile has.
template <typename TILE, typename Visit>
__device__ __forceinline__ void each_result(
    const WorkTile& mine, i32 rows, i32 columns, Visit visit) {
    int down = threadIdx.x / TILE::GRID, across = threadIdx.x % TILE::GRID;
#pragma unroll
    for (int i = 0; i < TILE::PER; i++) {
        i32 row = mine.row + TILE::line(down, i);
        if (row >= rows) continue;
#pragma unroll
        for (int j = 0; j < TILE::PER; j++) {
            i32 column = mine.column + TILE::line(across, j);
            if (column < columns) visit(i, j, row, column);
        }
    }
}

// --- a thread for each result

// One pixel of one channel.
template <typename S, typename T>
__device__ __forceinline__ S correlated(const T* image, const T* filter, const Window& window,
                                        const Images& steps, const Filters& filters, i32 tap_rows,
                                        Pixel pixel) {
    S sum = (S)0;
    i32 top = pixel.y * window.stride_y + window.start_y;
    i32 left = pixel.x * window.stride_x + window.start_x;
    for (i32 row = 0; row < tap_rows; row++) {
        i32 y = top + row * window.dilation_y;
        if ((u32)y >= (u32)window.source_height) continue;
        for (i32 column = 0; column < (i32)window.taps.divisor; column++) {
            i32 x = left + column * window.dilation_x;
            if ((u32)x >= (u32)window.source_width) continue;
            const T* a = image + pixel.image * steps.image + y * steps.row + x * steps.column;
            const T* b = filter + row * filters.row + column * filters.column;
            for (i32 channel = 0; channel < (i32)window.channels.divisor; channel++)
                sum += (S)wide(a[channel * steps.channel]) * (S)wide(b[channel * filters.channel]);
        }
    }
    return sum;
}

// The part of one element of a filter's gradient that pixels from `begin` to `end` have.
template <typename S, typename T>
__device__ __forceinline__ S gathered(const T* image, const T* gradient, const Window& window,
                                      const Images& steps, const Images& outer, Term term,
                                      i32 begin, i32 end) {
    S sum = (S)0;
    for (i32 number = begin; number < end; number++) {
        Pixel pixel = pixel_of(window, number);
        i32 y = pixel.y * window.stride_y + term.row * window.dilation_y + window.start_y;
        i32 x = pixel.x * window.stride_x + term.column * window.dilation_x + window.start_x;
        if ((u32)y < (u32)window.source_height && (u32)x < (u32)window.source_width)
            sum += (S)wide(image[pixel.image * steps.image + y * steps.row + x * steps.column]) *
                   (S)wide(gradient[outer.at(pixel)]);
    }
    return sum;
}
