// Advice to the operating system about memory that a kernel is about to fill.

#include "kernels.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

// Requests huge pages: page faults of new memory can take longer than filling the memory.
RIFFLEMIX_EXPORT void rifflemix_advise_huge_pages(void* memory, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = (reinterpret_cast<uintptr_t>(memory) + page - 1) / page * page;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(memory) + bytes) / page * page;
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#else
  (void)memory, (void)bytes;
#endif
}
