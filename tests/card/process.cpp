// What a process has once, whichever kernels it runs: memory for their fibers and blocks, and the
// guards of its arrays.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define VISIBLE extern "C" __attribute__((visibility("default")))

// Kept from launch to launch: new memory has to be made by the system, page by page.
VISIBLE char* kept_memory(size_t bytes) {
    static char* memory;
    static size_t there;
    if (there < bytes) {
        free(memory);
        memory = (char*)aligned_alloc(128, (bytes + 127) / 128 * 128);
        there = bytes;
    }
    return memory;
}

struct Guard {
    const char* start;
    size_t bytes;
};

// Which of the guards do not hold the pattern: how many, and their numbers.
VISIBLE unsigned find_broken(const Guard* guards, unsigned count, const char* pattern,
                             unsigned* broken) {
    unsigned found = 0;
    for (unsigned i = 0; i < count; i++)
        if (memcmp(guards[i].start, pattern, guards[i].bytes)) broken[found++] = i;
    return found;
}
