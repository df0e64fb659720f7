// What the blocks of a recurrent layer tell each other once a step.
#pragma once
#include "types.cuh"

// Words say themselves whether they are there: the last two bits of a float tell of which step it is.
// So nobody waits for more than the words themselves; a flag would have to be waited for as well, and
// so would everything written before it. A word is overwritten two steps later, when all who read it
// have answered.

__device__ __forceinline__ u32 tag_of(i32 step) { return 1u + ((u32)step >> 1 & 1u); }

__device__ __forceinline__ u32 tagged(float x, u32 tag) {
    return ((x != x ? 0x7fc00000u : float_to_bits(x)) & ~3u) | tag;
}

// Words of other blocks as they are now, and words for them: no order among them is kept.
__device__ __forceinline__ uint4 load_words(const u32* from) {
    uint4 words;
#ifdef __CUDA_ARCH__
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w) : "l"(from) : "memory");
#else
    words = *(const uint4*)from;
#endif
    return words;
}
__device__ __forceinline__ void store_words(u32* to, uint4 words) {
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4};"
                 :: "l"(to), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w) : "memory");
#else
    *(uint4*)to = words;
#endif
}
__device__ __forceinline__ void store_word(u32* to, u32 word) {
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(to), "r"(word) : "memory");
#else
    *to = word;
#endif
}

__device__ __forceinline__ bool are_of(uint4 words, u32 tag) {
    return !(((words.x ^ tag) | (words.y ^ tag) | (words.z ^ tag) | (words.w ^ tag)) & 3u);
}

// Read four words from each of COUNT places until all are of this step; `place(i)` is 0 where there
// is nothing to read. They come without their tags.
template <int COUNT, typename Place>
__device__ __forceinline__ void await_words(uint4 (&words)[COUNT], u32 tag, Place place) {
    for (bool ready = false; !ready;) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const u32* from = place(i);
            words[i] = from ? load_words(from) : make_uint4(tag, tag, tag, tag);
        }
        ready = true;
#pragma unroll
        for (int i = 0; i < COUNT; i++) ready = ready && are_of(words[i], tag);
        if (!ready) spin();
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        words[i].x &= ~3u;
        words[i].y &= ~3u;
        words[i].z &= ~3u;
        words[i].w &= ~3u;
    }
}
