// Microbenchmarks of what a machine can reach at most. Built by ceilings.py with -march=native, so
// the vectors below are as wide as the machine's. Threads are plain std::thread: no OpenMP pool is
// left behind in the process that calls.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

double now() {
    using clock = std::chrono::steady_clock;
    return std::chrono::duration<double>(clock::now().time_since_epoch()).count();
}

struct Passes {
    double best, median;  // seconds
    double share;         // of the time in which the unluckiest thread had a core
};

double cpu_seconds() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Runs body(thread) on all threads at once, again and again for about `seconds`. The fastest pass is
// what the machine can do. That it was busy with something else shows in a median far from that, or,
// where it was busy all the time, in a thread that had no core although it never sleeps.
template <class Body>
Passes passes(int threads, double seconds, Body body) {
    std::atomic<int> arrived{0}, round{0}, done{0};
    std::atomic<bool> stop{false};
    std::vector<std::thread> pool;
    std::vector<double> shares(threads);
    for (int t = 1; t < threads; t++) {
        pool.emplace_back([&, t] {
            const double begun = now(), had = cpu_seconds();
            for (int seen = 0;;) {
                while (round.load(std::memory_order_acquire) == seen) {
                    if (stop.load(std::memory_order_relaxed)) {
                        shares[t] = (cpu_seconds() - had) / (now() - begun);
                        return;
                    }
                    std::this_thread::yield();
                }
                seen++;
                body(t);
                done.fetch_add(1, std::memory_order_release);
            }
        });
    }
    std::vector<double> took;
    const double begun = now(), had = cpu_seconds(), end = begun + seconds;
    for (int i = 0; i < 3 || now() < end; i++) {
        done.store(0, std::memory_order_relaxed);
        const double start = now();
        round.fetch_add(1, std::memory_order_release);
        body(0);
        while (done.load(std::memory_order_acquire) < threads - 1) std::this_thread::yield();
        took.push_back(now() - start);
    }
    shares[0] = (cpu_seconds() - had) / (now() - begun);
    stop.store(true);
    for (auto& t : pool) t.join();
    std::sort(took.begin(), took.end());
    return {took.front(), took[took.size() / 2], *std::min_element(shares.begin(), shares.end())};
}

// A vector as wide as the machine's registers, and how many floats it holds.
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Vector __attribute__((vector_size(kLanes * sizeof(float)), may_alias));

void copy_plain(const float* x, float* y, std::size_t n) {
    const auto* a = reinterpret_cast<const Vector*>(x);
    auto* b = reinterpret_cast<Vector*>(y);
    const std::size_t m = n / kLanes;
    for (std::size_t i = 0; i < m; i++) b[i] = a[i];
}

// Stores that go past the caches save reading the line that is about to be overwritten.
void copy_streaming(const float* x, float* y, std::size_t n) {
#if defined(__AVX512F__)
    for (std::size_t i = 0; i + 16 <= n; i += 16) _mm512_stream_ps(y + i, _mm512_load_ps(x + i));
    _mm_sfence();
#elif defined(__AVX__)
    for (std::size_t i = 0; i + 8 <= n; i += 8) _mm256_stream_ps(y + i, _mm256_load_ps(x + i));
    _mm_sfence();
#else
    copy_plain(x, y, n);
#endif
}

struct Span {
    std::size_t first, count;
};

// Shares of n floats in whole cache lines.
Span share(std::size_t n, int threads, int t) {
    const std::size_t lines = n / 16, each = lines / threads;
    const std::size_t first = each * t;
    return {first * 16, (t == threads - 1 ? lines - first : each) * 16};
}

}  // namespace

extern "C" {

// Each of these returns the rate of the fastest pass; `typical` takes the median pass's, and the share.

// Bytes per second, read plus write, of copying n floats from x to y with all threads. Each thread
// works on its share `inner` times in one repetition. Both arrays are 64-byte aligned.
double kw_copy_rate(const float* x, float* y, long long n, int threads, int inner, int streaming,
                    double seconds, double* typical) {
    const Passes took = passes(threads, seconds, [&](int t) {
        const Span s = share(static_cast<std::size_t>(n), threads, t);
        for (int i = 0; i < inner; i++) {
            if (streaming)
                copy_streaming(x + s.first, y + s.first, s.count);
            else
                copy_plain(x + s.first, y + s.first, s.count);
            asm volatile("" ::: "memory");
        }
    });
    const double work = 2.0 * sizeof(float) * static_cast<double>(n / 16 * 16) * inner;
    typical[0] = work / took.median;
    typical[1] = took.share;
    return work / took.best;
}

// Bytes per second of reading n floats with all threads.
double kw_read_rate(const float* x, long long n, int threads, double seconds, double* typical) {
    const Passes took = passes(threads, seconds, [&](int t) {
        const Span s = share(static_cast<std::size_t>(n), threads, t);
        const auto* a = reinterpret_cast<const Vector*>(x + s.first);
        Vector sum[4] = {};
        const std::size_t m = s.count / kLanes;
        for (std::size_t i = 0; i + 4 <= m; i += 4)
            for (int k = 0; k < 4; k++) sum[k] += a[i + k];
        Vector all = sum[0] + sum[1] + sum[2] + sum[3];
        asm volatile("" : : "m"(all) : "memory");
    });
    const double work = sizeof(float) * static_cast<double>(n / 16 * 16);
    typical[0] = work / took.median;
    typical[1] = took.share;
    return work / took.best;
}

// Floating point operations per second of fused multiply-adds, counted as two, with all threads.
// Twelve chains hide the latency of two pipes of four cycles with some to spare.
double kw_fma_rate(int threads, double seconds, double* typical) {
    constexpr int kChains = 12;
    constexpr int kSteps = 200000;
    const Passes took = passes(threads, seconds, [&](int) {
        Vector a[kChains];
        for (int k = 0; k < kChains; k++) a[k] = Vector{} + static_cast<float>(k);
        Vector m = Vector{} + 0.999f, c = Vector{} + 0.001f;
        asm volatile("" : "+m"(m), "+m"(c));
        for (int i = 0; i < kSteps; i++) {
#pragma GCC unroll 12
            for (int k = 0; k < kChains; k++) a[k] = a[k] * m + c;
        }
        for (int k = 0; k < kChains; k++) asm volatile("" : : "m"(a[k]));
    });
    const double work = 2.0 * kLanes * kChains * kSteps * threads;
    typical[0] = work / took.median;
    typical[1] = took.share;
    return work / took.best;
}

int kw_lanes() { return kLanes; }

void kw_empty(const float*, float*, long long) {}

}  // extern "C"
