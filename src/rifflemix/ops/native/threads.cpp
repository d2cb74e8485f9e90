// Parallel loops on torch's threads if they are available, otherwise on new threads.

#include "threads.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

#if defined(__linux__)
#include <dlfcn.h>
#endif

namespace rifflemix {
namespace {

// Calls function(argument) on every thread of a team; 0 threads: the number of torch's threads.
using Team = void (*)(void (*function)(void*), void* argument, unsigned threads, unsigned flags);

// Entry point of the OpenMP library that torch has loaded, or nullptr. Its threads spin for a while
// after each torch operator, so a new thread would have to wait for a processor. They also need no
// start-up time.
Team loaded_team() {
#if defined(__linux__) && !defined(RIFFLEMIX_OWN_THREADS)  // for ThreadSanitizer
  static const Team team = reinterpret_cast<Team>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  return team;
#else
  return nullptr;
#endif
}

// Splits [0, count) into shares; a free thread processes the next share.
struct Shares {
  Work work_on;
  int64_t count, shares;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};

  // Processes one more share; returns false if no share is left. No exception may leave a thread:
  // after a failed allocation, the remaining shares are skipped.
  bool work() {
    const int64_t share = next++;
    if (share >= shares) return false;
    try {
      if (!failed) work_on.call(work_on.body, count * share / shares, count * (share + 1) / shares);
    } catch (const std::exception&) {
      failed = true;
    }
    return true;
  }
};

// Returns false if an allocation failed.
bool work_in_team(Team team, Shares& shares, int64_t workers) {
  struct Job {
    Shares& shares;
    int64_t workers;
    std::atomic<int64_t> joined{0};
  } job{shares, workers};
  const auto join = [](void* argument) {
    Job& job = *static_cast<Job*>(argument);
    if (job.joined++ >= job.workers) return;
    while (job.shares.work()) continue;
  };
  team(join, &job, 0, 0);
  return !shares.failed;
}

// The caller also processes shares, and waits for shares instead of threads. On a busy machine, a
// helper that starts late therefore does not delay the caller. Returns false if an allocation
// failed.
bool work_on_new_threads(const Work& work_on, int64_t count, int64_t shares, int64_t workers) {
  struct Progress {
    Shares shares;
    std::mutex mutex;
    std::condition_variable finished;
    int64_t done = 0;
  };
  // `work_on` belongs to the caller. Late helpers do not use it, because no share is left.
  const std::shared_ptr<Progress> progress(new Progress{{work_on, count, shares}, {}, {}});
  const auto work = [progress] {
    while (progress->shares.work()) {
      const std::lock_guard<std::mutex> lock(progress->mutex);
      if (++progress->done == progress->shares.shares) progress->finished.notify_one();
    }
  };
  try {
    for (int64_t helper = 1; helper < workers; ++helper) std::thread(work).detach();
  } catch (const std::exception&) {
    // No more threads or no memory for one: the existing threads do the work.
  }
  work();
  std::unique_lock<std::mutex> lock(progress->mutex);
  progress->finished.wait(lock, [&] { return progress->done == progress->shares.shares; });
  return !progress->shares.failed;
}

}  // namespace

void share_work(int64_t count, int threads, const Work& work_on) {
  constexpr int64_t kSharesPerThread = 4;
  const int64_t workers = std::min<int64_t>(threads, count);
  if (workers <= 1) return work_on.call(work_on.body, 0, count);
  const int64_t shares = std::min(count, kSharesPerThread * workers);
  const Team team = loaded_team();
  Shares all{work_on, count, shares};
  const bool done = team == nullptr ? work_on_new_threads(work_on, count, shares, workers)
                                    : work_in_team(team, all, workers);
  if (!done) throw std::bad_alloc();
}

}  // namespace rifflemix
