// Runs a kernel over its grid. `call` is the kernel with its parameters taken from pointers.
namespace emulated {
static void** arguments;
static unsigned threads_ended;
static void call(void** arguments);

// A kernel whose threads never meet is run thread by thread, without fibers.
static void run_alone(Block& block) {
    unsigned threads = block_size.x * block_size.y * block_size.z;
    Fiber fiber;
    memset(&fiber, 0, sizeof fiber);
    fiber.block = &block;
    current = &fiber;
    alone = true;
    for (unsigned t = 0; t < threads; t++) {
        fiber.rank = t;
        fiber.thread = {t % block_size.x, t / block_size.x % block_size.y,
                        t / block_size.x / block_size.y};
        call(arguments);
    }
    alone = false;
}

static void enter() {
    call(arguments);
    Fiber* self = current;
    self->done = true;
    threads_ended++;
    self->block->alive--;
    self->block->alive_in_warp[self->rank / 32]--;
    give_way();
}

static bool ended;
static unsigned threads_seen;
static const size_t STACK = 128 << 10;

// Kept from block to block: new memory has to be made by the system, page by page.
static char* stacks;

static void run_blocks(Block* blocks, unsigned count, size_t shared) {
    unsigned threads = block_size.x * block_size.y * block_size.z;
    Fiber* fibers = (Fiber*)calloc((size_t)count * threads, sizeof(Fiber));
    if (!stacks) stacks = (char*)malloc((size_t)count * threads * STACK);
    for (unsigned b = 0; b < count; b++) {
        Block& block = blocks[b];
        block.alive = threads;
        block.shared = (char*)aligned_alloc(64, (shared + 127) / 64 * 64);
        for (unsigned t = 0; t < threads; t++) {
            Fiber& fiber = fibers[(size_t)b * threads + t];
            fiber.block = &block;
            fiber.rank = t;
            fiber.thread = {t % block_size.x, t / block_size.x % block_size.y,
                            t / block_size.x / block_size.y};
            block.alive_in_warp[t / 32]++;
            getcontext(&fiber.start);
            fiber.start.uc_stack.ss_sp = stacks + ((size_t)b * threads + t) * STACK;
            fiber.start.uc_stack.ss_size = STACK;
            makecontext(&fiber.start, enter, 0);
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
    for (unsigned b = 0; b < count; b++) free(blocks[b].shared);
    free(fibers);
}
}  // namespace emulated

extern "C" void run(const unsigned* sizes, unsigned long shared, void** arguments, int meeting) {
    using namespace emulated;
    grid_size = {sizes[0], sizes[1], sizes[2]};
    block_size = {sizes[3], sizes[4], sizes[5]};
    emulated::arguments = arguments;
    unsigned total = sizes[0] * sizes[1] * sizes[2];
    // 0: threads never meet, 1: those of a block do, 2: those of the whole grid do.
    unsigned group = meeting == 2 ? total : 1;
    Block* blocks = (Block*)malloc(group * sizeof(Block));
    for (unsigned first = 0; first < total; first += group) {
        memset(blocks, 0, group * sizeof(Block));
        for (unsigned b = 0; b < group; b++) {
            unsigned id = first + b;
            blocks[b].index = {id % sizes[0], id / sizes[0] % sizes[1], id / sizes[0] / sizes[1]};
        }
        if (meeting) run_blocks(blocks, group, shared);
        else run_alone(blocks[0]);
    }
    free(blocks);
    free(stacks);
    stacks = 0;
}
