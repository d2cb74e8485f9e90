// The gradient of the rank filter: each token collects from those that took it.
//
// Sums are in float32, from the token's own output on, whatever the number of threads. A block of
// channels keeps the sums of the last tokens, and each output adds its gradient to the token that it
// was taken from. A gradient and its distance are converted once, not for every token of the window.

#include "permutation.h"
#include "vector.h"

namespace rifflemix::permutation {

using rifflemix::store;

constexpr int64_t kWidth = 64;          // channels of a block
constexpr int64_t kTokensOfTask = 512;  // and no fewer than eight windows

template <class T>
struct Collecting {
  static constexpr int64_t lanes = rifflemix::kLanes<float>;
  using Floats = rifflemix::Vector<float>;
  using Integers = rifflemix::VectorOf<float>::Integers;

  const Problem& p;
  int64_t blocks, stretches, stretch;
  float* sums;  // (slots, group_size, kWidth); that of token n is in row n % group_size

  Collecting(const Problem& problem, Arena& arena)
      : p(problem),
        blocks(quotient_up(p.channels, kWidth)),
        stretch(std::max(kTokensOfTask, 8 * p.group_size)),
        sums(arena.take<float>(p.useful_threads() * p.group_size * kWidth)) {
    stretches = quotient_up(p.length, stretch);
  }
};

// The gradients and distances of one output, as numbers.
template <class T>
struct Output {
  alignas(rifflemix::kVectorBytes) float grad[kWidth];
  alignas(rifflemix::kVectorBytes) int32_t ago[kWidth];

  RIFFLEMIX_INLINE void read(const T* from, const uint8_t* back, int64_t count) {
    constexpr int64_t lanes = Collecting<T>::lanes;
    for (int64_t at = 0; at < count; at += lanes) {
      store(grad + at, rifflemix::load(from + at, count - at));
    }
    for (int64_t c = 0; c < count; ++c) ago[c] = back[c];
  }

  // Adds to a row of sums what was taken `distance` tokens back.
  RIFFLEMIX_INLINE void add(float* sums, int64_t distance, int64_t count) const {
    using C = Collecting<T>;
    for (int64_t at = 0; at < count; at += C::lanes) {
      const auto took = load<typename C::Integers>(ago + at) == static_cast<int32_t>(distance);
      const auto value = rifflemix::load(grad + at);
      store(sums + at, rifflemix::load(sums + at) +
                           rifflemix::select<float>(took, value, typename C::Floats{}));
    }
  }
};

// A stretch of tokens of a block of channels of a sample. The problem is copied: a
// store could else change it, for all that a compiler knows.
template <class T>
RIFFLEMIX_INLINE void collect_stretch(const Collecting<T>& f, int64_t task, int64_t of) {
  constexpr int64_t lanes = Collecting<T>::lanes;
  const Problem p = f.p;
  const int64_t block = task % f.blocks, b = task / f.blocks / f.stretches;
  const int64_t first = task / f.blocks % f.stretches * f.stretch;
  const int64_t last = std::min(p.length, first + f.stretch);
  const int64_t channel = block * kWidth, count = std::min(kWidth, p.channels - channel);
  float* sums = f.sums + of * p.group_size * kWidth;
  Output<T> output;
  for (int64_t n = first; n < last + p.group_size - 1; ++n) {
    const int64_t place = (b * p.length + n) * p.channels + channel;
    if (n < p.length) {
      const T* grad = static_cast<const T*>(p.x) + b * p.batch_stride + n * p.row_stride + channel;
      output.read(grad, static_cast<const uint8_t*>(p.index) + place, count);
      std::fill_n(sums + n % p.group_size * kWidth, kWidth, 0.0f);
      const int64_t most = std::min(n - first, p.group_size - 1);
      for (int64_t j = std::max<int64_t>(0, n - last + 1); j <= most; ++j) {
        output.add(sums + (n - j) % p.group_size * kWidth, j, count);
      }
    }
    const int64_t done = n - p.group_size + 1;
    if (done < first) continue;
    T* out = static_cast<T*>(p.y) + (b * p.length + done) * p.channels + channel;
    const float* row = sums + done % p.group_size * kWidth;
    for (int64_t at = 0; at < count; at += lanes) {
      store(out + at, rifflemix::load(row + at), count - at);
    }
  }
}

#define RIFFLEMIX_COLLECT(T)                                                                  \
  RIFFLEMIX_DISPATCH(void, collect_stretch_of,                                                \
                     (const Collecting<T>& f, int64_t task, int64_t of), (f, task, of), {     \
    collect_stretch(f, task, of);                                                             \
  })
RIFFLEMIX_COLLECT(float)
RIFFLEMIX_COLLECT(rifflemix::Bfloat16)
RIFFLEMIX_COLLECT(rifflemix::Float16)

template <class T>
int64_t rank_filter_back(const Problem& p) {
  Arena arena(p.scratch);
  const Collecting<T> f(p, arena);
  if (p.scratch == nullptr) return arena.used();
  share(p, p.batch * f.stretches * f.blocks, [&](int64_t first, int64_t last, int64_t of) {
    for (int64_t task = first; task < last; ++task) collect_stretch_of(f, task, of);
  });
  return 0;
}

}  // namespace rifflemix::permutation

RIFFLEMIX_EXPORT int64_t rifflemix_rank_filter_back(const rifflemix::permutation::Problem* p) {
  using rifflemix::permutation::rank_filter_back;
  return rifflemix::guarded([&]() -> int64_t {
    if (p->element_bytes == 4) return rank_filter_back<float>(*p);
    if (p->infinity == 0x7C00) return rank_filter_back<rifflemix::Float16>(*p);
    return rank_filter_back<rifflemix::Bfloat16>(*p);
  });
}
