// Built into the kernels by a test: the allocation that it names fails.

#include <atomic>
#include <climits>
#include <cstdlib>
#include <new>

static std::atomic<long> left{LONG_MAX};

extern "C" __attribute__((visibility("default"))) void fail_allocation(long number) {
  left = number;
}
extern "C" __attribute__((visibility("default"))) long allocations_left() { return left; }

static void* allocate(std::size_t size) {
  if (left-- == 0) throw std::bad_alloc();
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}

void* operator new(std::size_t size) { return allocate(size); }
void* operator new[](std::size_t size) { return allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
