// A test builds this file into the kernels: the selected allocation fails.

#include <atomic>
#include <climits>
#include <cstdlib>
#include <new>

static std::atomic<long> left{LONG_MAX};

extern "C" __attribute__((visibility("default"))) void fail_allocation(long number) {
  left = number;
}
extern "C" __attribute__((visibility("default"))) long allocations_left() { return left; }

static void* allocate(std::size_t size, std::size_t alignment = sizeof(void*)) {
  void* memory = nullptr;
  if (left-- == 0 || posix_memalign(&memory, alignment, size) != 0) throw std::bad_alloc();
  return memory;
}

void* operator new(std::size_t size) { return allocate(size); }
void* operator new[](std::size_t size) { return allocate(size); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
