// The machine that machine.cuh declares, and how it runs a kernel over its grid. Compiled once, and
// linked to each kernel: every one has a machine of its own.
#include "machine.cuh"
#include <setjmp.h>
#include <ucontext.h>

// --- threads and where they meet

namespace emulated {
struct Fiber : Thread {
    ucontext_t start;
    jmp_buf place;
    bool started;
    bool done;
    // The barrier it waits for, and how often that had been passed when it came.
    const Barrier* awaited;
    unsigned since;
};

dim3 grid_size, block_size;
Thread* current;
static jmp_buf scheduler;
static bool alone;

static Fiber* fiber() { return (Fiber*)current; }

// Jumps instead of switches of context: those ask the system to do what is not needed here.
__attribute__((noinline)) void give_way() {
    if (alone) abort();  // taken for a kernel whose threads never meet
    if (_setjmp(fiber()->place) == 0) _longjmp(scheduler, 1);
}

__attribute__((noinline)) static void resume(Fiber* fiber) {
    current = fiber;
    if (_setjmp(scheduler)) return;
    if (fiber->started) _longjmp(fiber->place, 1);
    fiber->started = true;
    setcontext(&fiber->start);
}

static void meet(Barrier& barrier, unsigned& alive) {
    if (alone) abort();  // taken for a kernel whose threads never meet
    unsigned mine = barrier.generation;
    barrier.arrived++;
    fiber()->awaited = &barrier;
    fiber()->since = mine;
    while (barrier.generation == mine) {
        // Threads that have ended do not come.
        if (barrier.arrived >= alive) {
            barrier.arrived = 0;
            barrier.generation++;
            break;
        }
        give_way();
    }
    fiber()->awaited = 0;
}

void meet_warp() {
    Block& block = *current->block;
    unsigned warp = current->rank / 32;
    meet(block.warps[warp], block.alive_in_warp[warp]);
}

u64 exchanged_bits(u64 mine, unsigned lane) {
    Block& block = *current->block;
    block.exchange[current->rank] = mine;
    meet_warp();
    u64 theirs = block.exchange[(current->rank & ~31u) + lane];
    meet_warp();
    return theirs;
}
}  // namespace emulated

void __syncthreads() {
    emulated::Block& block = *emulated::current->block;
    emulated::meet(block.meeting, block.alive);
}

unsigned __ballot_sync(unsigned, int predicate) {
    emulated::Block& block = *emulated::current->block;
    block.exchange[emulated::current->rank] = predicate ? 1 : 0;
    emulated::meet_warp();
    unsigned found = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        if (block.exchange[(emulated::current->rank & ~31u) + lane]) found |= 1u << lane;
    emulated::meet_warp();
    return found;
}

// --- numbers

void sincospif(float x, float* sine, float* cosine) {
    *sine = (float)sin(M_PI * (double)x);
    *cosine = (float)cos(M_PI * (double)x);
}
void sincospi(double x, double* sine, double* cosine) {
    *sine = sin(M_PI * x);
    *cosine = cos(M_PI * x);
}

float half_bits_to_float(u16 bits) {
    u32 sign = (u32)(bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, mantissa = bits & 0x3ffu;
    if (exponent == 31) return bits_to_float(sign | 0x7f800000u | (mantissa << 13));
    if (exponent) return bits_to_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
    float small = ldexpf((float)mantissa, -24);
    return sign ? -small : small;
}
u16 double_to_half_bits(double x) {
    u16 sign = signbit(x) ? 0x8000u : 0;
    double size = fabs(x);
    if (size != size) return 0x7fffu;
    if (size >= 65520.0) return sign | 0x7c00u;
    int exponent;
    frexp(size, &exponent);
    // The unit in the last place: fixed below the smallest normal number.
    double unit = ldexp(1.0, exponent - 11 < -24 ? -24 : exponent - 11);
    double rounded = nearbyint(size / unit) * unit;
    if (rounded < ldexp(1.0, -14)) return sign | (u16)(rounded / ldexp(1.0, -24));
    double fraction = frexp(rounded, &exponent);
    return sign | (u16)((exponent + 14) << 10) | (u16)(ldexp(fraction, 11) - 1024.0);
}

static float bfloat_bits_to_float(u16 bits) { return bits_to_float((u32)bits << 16); }
template <float (*WIDE)(u16)> u32 two_above(u32 a, u32 b) {
    u32 low = WIDE((u16)a) > WIDE((u16)b), high = WIDE((u16)(a >> 16)) > WIDE((u16)(b >> 16));
    return low * 0xffffu | high * 0xffff0000u;
}
template <float (*WIDE)(u16)> u32 larger_bits(u16 a, u16 b) {
    float x = WIDE(a), y = WIDE(b);
    return x != x || y != y ? 0x7fffu : x > y || (x == y && !signbit(x)) ? a : b;
}
template <float (*WIDE)(u16)> u32 two_max(u32 a, u32 b) {
    return larger_bits<WIDE>((u16)a, (u16)b) |
           larger_bits<WIDE>((u16)(a >> 16), (u16)(b >> 16)) << 16;
}
u32 half_pair_above(u32 a, u32 b) { return two_above<half_bits_to_float>(a, b); }
u32 bfloat_pair_above(u32 a, u32 b) { return two_above<bfloat_bits_to_float>(a, b); }
u32 half_pair_max(u32 a, u32 b) { return two_max<half_bits_to_float>(a, b); }
u32 bfloat_pair_max(u32 a, u32 b) { return two_max<bfloat_bits_to_float>(a, b); }

// --- tensor cores

// The fragments are spread over the lanes as on the card: put together, multiplied, spread again. A
// word holds MANY numbers; `product` multiplies those of two words with the same place in them.
template <int MANY, typename Product>
void mma_of(float* c, const u32* a, u32 b0, u32 b1, Product product) {
    emulated::Block& block = *emulated::current->block;
    unsigned g = lane_of() / 4, t = lane_of() % 4, first = emulated::current->rank & ~31u;
    u32* mine = block.fragments[emulated::current->rank];
    for (unsigned i = 0; i < 4; i++) mine[i] = a[i];
    mine[4] = b0;
    mine[5] = b1;
    emulated::meet_warp();
    for (unsigned i = 0; i < 2; i++)
        for (unsigned j = 0; j < 2; j++)
            for (unsigned k = 0; k < 8 * MANY; k++) {
                unsigned lane = k % (4 * MANY) / MANY, word = k / (4 * MANY);
                u32 left = block.fragments[first + g * 4 + lane][i + word * 2];
                u32 right = block.fragments[first + (2 * t + j) * 4 + lane][4 + word];
                c[2 * i + j] += product(left, right, k % MANY);
            }
    emulated::meet_warp();
}
void mma_tf32(float* c, const u32* a, u32 b0, u32 b1) {
    mma_of<1>(c, a, b0, b1, [](u32 left, u32 right, unsigned) {
        return bits_to_float(left) * bits_to_float(right);
    });
}
template <float (*WIDE)(u16)> void mma_of_16_bits(float* c, const u32* a, u32 b0, u32 b1) {
    mma_of<2>(c, a, b0, b1, [](u32 left, u32 right, unsigned place) {
        return WIDE((u16)(left >> place * 16)) * WIDE((u16)(right >> place * 16));
    });
}
void mma_half(float* c, const u32* a, u32 b0, u32 b1) {
    mma_of_16_bits<half_bits_to_float>(c, a, b0, b1);
}
void mma_bfloat(float* c, const u32* a, u32 b0, u32 b1) {
    mma_of_16_bits<bfloat_bits_to_float>(c, a, b0, b1);
}

// Matrix m of those whose rows the lanes say: where its row begins.
static const char* row_of(unsigned m, unsigned row) {
    const emulated::Block& block = *emulated::current->block;
    u64 place = block.exchange[(emulated::current->rank & ~31u) + m * 8 + row];
    if (place % 16) abort();
    return (const char*)place;
}
void mma_rows(u32* words, SharedPlace row) {
    emulated::current->block->exchange[emulated::current->rank] = row;
    emulated::meet_warp();
    for (unsigned m = 0; m < 4; m++)
        memcpy(words + m, row_of(m, lane_of() / 4) + lane_of() % 4 * 4, 4);
    emulated::meet_warp();
}
void mma_columns(u32* words, SharedPlace row) {
    emulated::current->block->exchange[emulated::current->rank] = row;
    emulated::meet_warp();
    for (unsigned m = 0; m < 4; m++) {
        u16 both[2];
        for (unsigned i = 0; i < 2; i++)
            memcpy(both + i, row_of(m, lane_of() % 4 * 2 + i) + lane_of() / 4 * 2, 2);
        memcpy(words + m, both, 4);
    }
    emulated::meet_warp();
}

// --- running a kernel

namespace emulated {
static void (*kernel)(void**);
static void** arguments;
static unsigned threads_ended;

static uint3 index_of(unsigned thread) {
    return {thread % block_size.x, thread / block_size.x % block_size.y,
            thread / block_size.x / block_size.y};
}

// A kernel whose threads never meet is run thread by thread, without fibers.
static void run_alone(Block& block) {
    unsigned threads = block_size.x * block_size.y * block_size.z;
    Thread thread;
    thread.block = &block;
    current = &thread;
    alone = true;
    for (unsigned t = 0; t < threads; t++) {
        thread.rank = t;
        thread.index = index_of(t);
        kernel(arguments);
    }
    alone = false;
}

// A fiber is woken again for each block that it is a thread of: to make one asks the system twice.
static void enter() {
    for (;;) {
        kernel(arguments);
        Fiber* self = fiber();
        self->done = true;
        threads_ended++;
        self->block->alive--;
        self->block->alive_in_warp[self->rank / 32]--;
        give_way();
    }
}

static bool ended;
static unsigned threads_seen;
static const size_t STACK = 128 << 10;
// A little more, so that the same place of all stacks is not the same place of the caches.
static const size_t STRIDE = STACK + 64;

static Fiber* new_fibers(Block* blocks, unsigned count, char* stacks) {
    unsigned threads = block_size.x * block_size.y * block_size.z;
    Fiber* fibers = (Fiber*)calloc((size_t)count * threads, sizeof(Fiber));
    ucontext_t here;
    getcontext(&here);
    for (size_t i = 0; i < (size_t)count * threads; i++) {
        Fiber& fiber = fibers[i];
        fiber.block = blocks + i / threads;
        fiber.rank = i % threads;
        fiber.index = index_of(fiber.rank);
        fiber.start = here;
        fiber.start.uc_stack.ss_sp = stacks + i * STRIDE;
        fiber.start.uc_stack.ss_size = STACK;
        makecontext(&fiber.start, enter, 0);
    }
    return fibers;
}

static void run_blocks(Block* blocks, unsigned count, size_t shared, Fiber* fibers) {
    unsigned threads = block_size.x * block_size.y * block_size.z;
    for (unsigned b = 0; b < count; b++) {
        Block& block = blocks[b];
        block.alive = threads;
        // Nan, until a thread has written: what the block before left must not be read.
        memset(block.shared, 0xff, shared);
        for (unsigned t = 0; t < threads; t++) {
            block.alive_in_warp[t / 32]++;
            fibers[(size_t)b * threads + t].done = false;
        }
    }
    for (bool busy = true; busy;) {
        busy = false;
        ended = threads_ended != threads_seen;
        threads_seen = threads_ended;
        for (size_t i = 0; i < (size_t)count * threads; i++) {
            Fiber& fiber = fibers[i];
            if (fiber.done) continue;
            busy = true;
            // Woken only if the barrier has been passed, or if enough others have ended meanwhile.
            if (fiber.awaited && fiber.awaited->generation == fiber.since && !ended) continue;
            resume(&fibers[i]);
        }
    }
}

// Shared memory between guards: bytes that are nan together, and that no kernel writes. A kernel
// that has no such memory has short guards; what is written beyond it can go far.
static const size_t BEFORE = 4096;
static const char PATTERN[] = "\xa9\xc5\xf3\xff";
static size_t behind(size_t bytes) { return bytes ? 128 << 10 : 4096; }

static void fill_guard(char* guard, size_t bytes) {
    memcpy(guard, PATTERN, 4);
    for (size_t done = 4; done < bytes; done *= 2)
        memcpy(guard + done, guard, done < bytes - done ? done : bytes - done);
}

static bool is_whole(const char* guard, size_t bytes) {
    return !memcmp(guard, PATTERN, 4) && !memcmp(guard, guard + 4, bytes - 4);
}

static char* guarded_memory(size_t bytes) {
    char* whole = (char*)aligned_alloc(128, (BEFORE + bytes + behind(bytes) + 127) / 128 * 128);
    fill_guard(whole, BEFORE);
    fill_guard(whole + BEFORE + bytes, behind(bytes));
    return whole + BEFORE;
}

static bool is_broken(const char* memory, size_t bytes) {
    return !is_whole(memory - BEFORE, BEFORE) || !is_whole(memory + bytes, behind(bytes));
}

int run(void (*call)(void**), const unsigned* sizes, unsigned long shared, void** arguments,
        int meeting, char* (*stacks)(size_t)) {
    grid_size = {sizes[0], sizes[1], sizes[2]};
    block_size = {sizes[3], sizes[4], sizes[5]};
    kernel = call;
    emulated::arguments = arguments;
    unsigned total = sizes[0] * sizes[1] * sizes[2];
    // 0: threads never meet, 1: those of a block do, 2: those of the whole grid do.
    unsigned group = meeting == 2 ? total : 1;
    Block* blocks = (Block*)malloc(group * sizeof(Block));
    char** memory = (char**)malloc(group * sizeof(char*));
    for (unsigned b = 0; b < group; b++) memory[b] = guarded_memory(shared);
    Fiber* fibers = 0;
    if (meeting) {
        size_t threads = (size_t)group * sizes[3] * sizes[4] * sizes[5];
        fibers = new_fibers(blocks, group, stacks(threads * STRIDE));
    }
    for (unsigned first = 0; first < total; first += group) {
        memset(blocks, 0, group * sizeof(Block));
        for (unsigned b = 0; b < group; b++) {
            unsigned id = first + b;
            blocks[b].shared = memory[b];
            blocks[b].index = {id % sizes[0], id / sizes[0] % sizes[1], id / sizes[0] / sizes[1]};
        }
        if (meeting) run_blocks(blocks, group, shared, fibers);
        else run_alone(blocks[0]);
    }
    // What one block breaks stays broken.
    int broken = 0;
    for (unsigned b = 0; b < group; b++) {
        broken |= is_broken(memory[b], shared);
        free(memory[b] - BEFORE);
    }
    free(fibers);
    free(memory);
    free(blocks);
    return broken;
}
}  // namespace emulated
