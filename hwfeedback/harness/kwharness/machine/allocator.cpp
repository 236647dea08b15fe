// Memory for large tensors, kept when it is freed and given out again last in, first out, as the
// caching allocator of a GPU does. Preloaded into the fork server, and so into every worker.
//
// The C library's malloc cannot do this. It maps and unmaps large blocks, or, told to keep them,
// finds that an aligned request does not fit the hole that one of the same size has left: small
// pieces were cut off it. So every call of a forward touches new pages, 2 ms for 8 MiB that take
// 0.6 ms to compute, or does not, depending on what was freed before.
//
// Only aligned requests (torch makes no others for tensors) of SMALLEST bytes and more come here.
// Blocks lie in one range of addresses, so that free() knows its own.

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

extern "C" {
void __libc_free(void*);
void* __libc_malloc(size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
size_t kernelwright_poison = 0;  // 0x100 + a byte: what a block holds when it is given out
}

namespace {

constexpr size_t SMALLEST = size_t(1) << 17;
constexpr size_t UNIT = size_t(1) << 16;  // blocks are whole units
constexpr size_t ALIGNMENT = 4096;        // what more a request may ask for is the C library's
constexpr int CLASSES = 256;

struct Free {
    Free* next;
};

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
uintptr_t base = 0;          // of the range; 0 where it could not be had
uintptr_t reserved = 0;      // its bytes
uintptr_t used = 0;          // of them in blocks
uint8_t* classes = nullptr;  // of the block that begins at a unit
Free* kept[CLASSES];

// Eight classes from one power of two to the next, one for every unit below eight units.
int class_of(size_t bytes, size_t* size) {
    size_t units = (bytes + UNIT - 1) / UNIT;
    if (units <= 8) {
        *size = units * UNIT;
        return int(units) - 1;
    }
    int log = 63 - __builtin_clzll(units);
    size_t step = size_t(1) << (log - 3);
    size_t eighths = (units + step - 1) / step;  // 8 to 16
    *size = eighths * step * UNIT;
    return 8 * (log - 2) + int(eighths) - 8;
}

// At the start: a worker's limit on its address space counts from what it was born with.
__attribute__((constructor)) void reserve() {
    size_t memory = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGE_SIZE));
    memory = memory / UNIT * UNIT;
    size_t table = memory / UNIT;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* range = mmap(nullptr, memory, PROT_NONE, flags, -1, 0);
    if (range == MAP_FAILED) return;
    void* of = mmap(nullptr, table, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (of == MAP_FAILED) {
        munmap(range, memory);
        return;
    }
    classes = static_cast<uint8_t*>(of);
    reserved = memory;
    base = reinterpret_cast<uintptr_t>(range);
}

// Where the bytes of a block begin. Not all on one offset in a page: loads and stores at the same
// offset of different pages get into each other's way.
uintptr_t coloured(uintptr_t block) { return block + 64 * (1 + (block / UNIT * 7) % 31); }

void* take(size_t bytes, size_t alignment) {
    if (bytes > reserved) return nullptr;
    size_t size;
    int k = class_of(bytes + ALIGNMENT, &size);
    if (k >= CLASSES) return nullptr;
    uintptr_t block = 0;
    pthread_mutex_lock(&lock);
    if (kept[k]) {
        block = reinterpret_cast<uintptr_t>(kept[k]);
        kept[k] = kept[k]->next;
    } else if (size <= reserved - used) {
        void* at = reinterpret_cast<void*>(base + used);
        if (mprotect(at, size, PROT_READ | PROT_WRITE) == 0) {
            block = base + used;
            classes[used / UNIT] = uint8_t(k);
            used += size;
        }
    }
    pthread_mutex_unlock(&lock);
    if (!block) return nullptr;
    uintptr_t start = coloured(block);
    if (alignment > 64) start = block;
    if (kernelwright_poison) memset(reinterpret_cast<void*>(start), int(kernelwright_poison & 0xff), bytes);
    return reinterpret_cast<void*>(start);
}

bool ours(const void* p) { return reinterpret_cast<uintptr_t>(p) - base < used && base; }

size_t size_at(const void* p) {
    uintptr_t at = reinterpret_cast<uintptr_t>(p) - base;
    int k = classes[at / UNIT];
    size_t units = k < 8 ? size_t(k) + 1 : size_t(8 + k % 8) << (k / 8 - 1);
    return units * UNIT - at % UNIT;
}

void give_back(void* p) {
    uintptr_t at = (reinterpret_cast<uintptr_t>(p) - base) / UNIT;
    Free* block = reinterpret_cast<Free*>(base + at * UNIT);
    pthread_mutex_lock(&lock);
    block->next = kept[classes[at]];
    kept[classes[at]] = block;
    pthread_mutex_unlock(&lock);
}

}  // namespace

extern "C" {

int posix_memalign(void** out, size_t alignment, size_t bytes) {
    if (alignment < sizeof(void*) || (alignment & (alignment - 1))) return EINVAL;
    void* p = bytes >= SMALLEST && alignment <= ALIGNMENT ? take(bytes, alignment) : nullptr;
    if (!p) p = __libc_memalign(alignment, bytes);
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}

void* memalign(size_t alignment, size_t bytes) {
    void* p = bytes >= SMALLEST && alignment <= ALIGNMENT ? take(bytes, alignment) : nullptr;
    return p ? p : __libc_memalign(alignment, bytes);
}

void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }

void free(void* p) {
    if (ours(p))
        give_back(p);
    else
        __libc_free(p);
}

void* realloc(void* p, size_t bytes) {
    if (!ours(p)) return __libc_realloc(p, bytes);
    if (!bytes) {
        give_back(p);
        return nullptr;
    }
    void* other = __libc_malloc(bytes);
    if (!other) return nullptr;
    size_t had = size_at(p);
    memcpy(other, p, had < bytes ? had : bytes);
    give_back(p);
    return other;
}

// Gives the memory of what is kept back to the system; the addresses stay ours, and of each block
// its first page, which holds the list (touched anew it might become a huge one).
void kernelwright_release() {
    const size_t page = size_t(sysconf(_SC_PAGE_SIZE));
    pthread_mutex_lock(&lock);
    for (Free*& list : kept) {
        Free* emptied = nullptr;
        while (list) {
            Free* block = list;
            list = block->next;
            madvise(reinterpret_cast<char*>(block) + page, size_at(block) - page, MADV_DONTNEED);
            block->next = emptied;
            emptied = block;
        }
        list = emptied;
    }
    pthread_mutex_unlock(&lock);
}

// For the referee: copies whole cache lines to where no cache holds them afterwards.
void kernelwright_copy_past_caches(void* to, const void* from, size_t bytes) {
#if defined(__x86_64__)
    auto* out = static_cast<__m128i*>(to);
    auto* in = static_cast<const __m128i*>(from);
    for (size_t i = 0; i < bytes / 16; i++) _mm_stream_si128(out + i, _mm_loadu_si128(in + i));
    _mm_sfence();
#else
    memcpy(to, from, bytes);
#if defined(__aarch64__)
    auto* line = static_cast<char*>(to);
    for (size_t i = 0; i < bytes; i += 64) asm volatile("dc civac, %0" ::"r"(line + i) : "memory");
    asm volatile("dsb ish" ::: "memory");
#endif
#endif
}

// For a worker on a GPU: memory for torch.cuda.MemPool in a block that the referee has mapped too,
// so that it fetches outputs from where they were made. What does not fit comes from the driver.
// Pieces that are given back are found again by their size.

namespace {

struct Piece {
    uintptr_t at;
    size_t size;
};
pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
uintptr_t pool_base;
size_t pool_size, pool_used, pool_lent;
Piece pieces[4096];  // given back
size_t pieces_kept;
int (*driver_allocates)(uint64_t*, size_t);
int (*driver_frees)(uint64_t);

}  // namespace

void kernelwright_pool(void* at, size_t bytes, void* allocates, void* frees) {
    pthread_mutex_lock(&pool_lock);
    pool_base = reinterpret_cast<uintptr_t>(at);
    pool_size = bytes;
    pool_used = pool_lent = pieces_kept = 0;
    driver_allocates = reinterpret_cast<int (*)(uint64_t*, size_t)>(allocates);
    driver_frees = reinterpret_cast<int (*)(uint64_t)>(frees);
    pthread_mutex_unlock(&pool_lock);
}

void* kernelwright_pool_take(ssize_t bytes, int, void*) {
    size_t size = (size_t(bytes) + 511) / 512 * 512;
    uintptr_t found = 0;
    pthread_mutex_lock(&pool_lock);
    for (size_t i = 0; i < pieces_kept && !found; i++) {
        if (pieces[i].size != size) continue;
        found = pieces[i].at;
        pieces[i] = pieces[--pieces_kept];
    }
    if (!found && size <= pool_size - pool_used) {
        found = pool_base + pool_used;
        pool_used += size;
    }
    if (found) pool_lent += size;
    pthread_mutex_unlock(&pool_lock);
    if (found) return reinterpret_cast<void*>(found);
    uint64_t other = 0;
    return driver_allocates(&other, size) ? nullptr : reinterpret_cast<void*>(other);
}

void kernelwright_pool_give_back(void* p, ssize_t bytes, int, void*) {
    uintptr_t at = reinterpret_cast<uintptr_t>(p);
    if (at - pool_base >= pool_size) {
        driver_frees(at);
        return;
    }
    size_t size = (size_t(bytes) + 511) / 512 * 512;
    pthread_mutex_lock(&pool_lock);
    pool_lent -= size;
    if (pieces_kept < sizeof pieces / sizeof *pieces) pieces[pieces_kept++] = {at, size};
    pthread_mutex_unlock(&pool_lock);
}

// Returns how many bytes of the block are in use.
size_t kernelwright_pool_lent() { return pool_lent; }

}  // extern "C"
