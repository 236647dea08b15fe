// Enough of CUDA to run a candidate's kernels on a CPU, for tests of what they compute: each thread of a block
// is a fiber, which waits at barriers and shuffles; blocks run one after the other. A thread that reads what another
// one wrote without a barrier between them may see it or not, as on a GPU: the order of threads in a warp changes from
// block to block.
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(n)
#define __restrict__

typedef void* cudaStream_t;

namespace emulated {

struct Three {
  unsigned x = 0, y = 0, z = 0;
};
enum State { running, at_warp, at_block, done };

constexpr int most = 1024;
constexpr size_t stack_bytes = 64 << 10;

// Contexts begin a fiber, jumps go on with it: a jump asks nothing of the system.
struct Fiber {
  jmp_buf at;
  State state;
  int words[1];  // what it shows to its warp
};

static Fiber fibers[most];
static char* stacks = nullptr;
static int begun = 0, now = 0, size = 0;
static ucontext_t scheduler, first;
static jmp_buf back;
static Three block, grid, threads;
static void (*body)(void*) = nullptr;
static void* arguments = nullptr;

static void leave(State s) {
  Fiber& f = fibers[now];
  f.state = s;
  if (_setjmp(f.at) == 0) _longjmp(back, 1);
}
static void enter() {
  leave(done);  // until there is something to do
  for (;;) {
    body(arguments);
    leave(done);
  }
}
static void wait(State at) { leave(at); }

// Lets those go on who wait where everybody who still runs has come.
static bool release() {
  bool any = false, all_at_block = true;
  for (int t = 0; t < size; ++t) all_at_block = all_at_block && (fibers[t].state == at_block || fibers[t].state == done);
  for (int warp = 0; warp < size; warp += 32) {
    bool met = true;
    for (int t = warp; t < warp + 32 && t < size; ++t) met = met && fibers[t].state == at_warp;
    for (int t = warp; t < warp + 32 && t < size; ++t) {
      if ((met && fibers[t].state == at_warp) || (all_at_block && fibers[t].state == at_block)) {
        fibers[t].state = running;
        any = true;
      }
    }
  }
  return any;
}

static void run(long long blocks, int count) {
  if (count % 32 != 0 || count > most || blocks <= 0 || blocks > 0x7fffffff) {
    fprintf(stderr, "a launch of %lld blocks of %d threads\n", blocks, count);
    abort();
  }
  if (!stacks) stacks = static_cast<char*>(malloc(most * stack_bytes));
  for (; begun < count; ++begun) {
    getcontext(&first);
    first.uc_stack.ss_sp = stacks + begun * stack_bytes;
    first.uc_stack.ss_size = stack_bytes;
    first.uc_link = nullptr;
    makecontext(&first, enter, 0);
    now = begun;
    if (_setjmp(back) == 0) swapcontext(&scheduler, &first);
  }
  size = count;
  grid.x = blocks;
  threads.x = count;
  for (long long b = 0; b < blocks; ++b) {
    block.x = b;
    for (int t = 0; t < size; ++t) fibers[t].state = running;
    for (;;) {
      bool left = false;
      for (int n = 0; n < size; ++n) {
        now = b % 2 ? size - 1 - n : n;
        if (fibers[now].state == running && _setjmp(back) == 0) _longjmp(fibers[now].at, 1);
        left = left || fibers[now].state != done;
      }
      if (!left) break;
      if (!release()) {
        fprintf(stderr, "threads of a block wait for each other at different places\n");
        abort();
      }
    }
  }
}

template <typename F>
void launch(long long blocks, int count, F f) {
  body = [](void* p) { (*static_cast<F*>(p))(); };
  arguments = &f;
  run(blocks, count);
}

static inline Three thread_index() { return {static_cast<unsigned>(now), 0, 0}; }

template <typename T>
T shuffled(T v, int from) {
  static_assert(sizeof(T) == 4, "words of 4 bytes");
  Fiber& f = fibers[now];
  memcpy(&f.words[0], &v, 4);
  const int warp = now / 32 * 32;
  wait(at_warp);
  T got;
  memcpy(&got, &fibers[from < 0 ? now : warp + from].words[0], 4);
  wait(at_warp);
  return got;
}

static inline int lane() { return now % 32; }

}  // namespace emulated

#define threadIdx (emulated::thread_index())
#define blockIdx (emulated::block)
#define blockDim (emulated::threads)
#define gridDim (emulated::grid)
#define __syncthreads() emulated::wait(emulated::at_block)
#define __syncwarp() emulated::wait(emulated::at_warp)

template <typename T>
T __shfl_xor_sync(unsigned, T v, int mask) { return emulated::shuffled(v, emulated::lane() ^ mask); }
template <typename T>
T __shfl_sync(unsigned, T v, int lane, int width = 32) {
  return emulated::shuffled(v, emulated::lane() / width * width + lane % width);
}
template <typename T>
T __shfl_up_sync(unsigned, T v, int apart) {
  return emulated::shuffled(v, emulated::lane() >= apart ? emulated::lane() - apart : -1);
}
