// How kernels are launched, for code of the host (nvcc, CUDA alone).
//
// A kernel that calls kw::begins() first and is launched by kw::follow begins while the one before may still be at
// work (programmatic dependent launch), where device and kernel know that; else as any other.
//
//   __global__ void second(const float* part, float* y) {
//     kw::begins();  // waits for what the kernels before have written: read nothing of theirs earlier
//     ...
//   }
//   static int known[kw::devices];
//   kw::follow(second, blocks, 256, stream, known, part, y);
//
// kw::there(kernel, threads, bytes, known) is how many blocks with so much shared memory are on the device at once;
// kw::together launches teams of blocks that are all there at once, so that they may wait for each other (kw/team.h).
#ifndef KW_LAUNCH_H
#define KW_LAUNCH_H
#include <kw/base.h>
#ifdef __CUDACC__
namespace kw {
// Of so many devices of a process it is kept what they can do.
constexpr int devices = 64;
// Lets blocks of the next kernel come, and waits for what the kernels before have written. A compiler may put before it
// what is read by const and __restrict__, so that what these kernels write is read by neither.
KW_FN void begins() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#ifndef __CUDACC_RTC__
// known: 1 of a device where it and the kernel know of it, -1 where not.
template <typename... P, typename... A>
static void follow(void (*kernel)(P...), long long blocks, int threads, cudaStream_t stream, int (&known)[devices], A... given) {
  int device = 0, able = 0;
  cudaGetDevice(&device);
  if (device < devices) able = known[device];
  if (able == 0) {
    cudaFuncAttributes compiled = {};
    int major = 0;
    cudaFuncGetAttributes(&compiled, reinterpret_cast<const void*>(kernel));
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    able = compiled.ptxVersion >= 90 && major >= 9 ? 1 : -1;
    if (device < devices) known[device] = able;
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((unsigned)blocks);
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = able > 0 ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, given...);
}
template <typename K>
static int there(K* kernel, int threads, int bytes, int (&known)[devices]) {
  int device = 0, each = 0, all = 0;
  cudaGetDevice(&device);
  if (device < devices && known[device] > 0) return known[device];
  cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, reinterpret_cast<const void*>(kernel), threads, bytes);
  cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, device);
  if (device < devices) known[device] = each * all;
  return each * all;
}
// Under a tool that needs room of its own fewer than it was said that there is place for.
template <typename... P, typename... A>
static void together(void (*kernel)(P...), long long teams, int size, int threads, int bytes, cudaStream_t stream, A... given) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  for (;; teams /= 2) {
    config.gridDim = dim3((unsigned)(teams * size));
    if (cudaLaunchKernelEx(&config, kernel, given...) != cudaErrorCooperativeLaunchTooLarge || teams == 1) return;
    cudaGetLastError();
  }
}
#endif
}  // namespace kw
#endif
#endif
