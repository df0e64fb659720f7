// What a process has once, whichever kernels it runs: the stacks of their fibers, and the guards of
// its memory.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define VISIBLE extern "C" __attribute__((visibility("default")))

// Kept from launch to launch: new memory has to be made by the system, page by page.
VISIBLE char* stacks(size_t bytes) {
    static char* memory;
    static size_t there;
    if (there < bytes) {
        free(memory);
        memory = (char*)malloc(bytes);
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
