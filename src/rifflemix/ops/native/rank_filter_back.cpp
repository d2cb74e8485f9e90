// The gradient of the rank filter: each token collects from those that took it.
//
// Sums are in float32, from the token's own output on, whatever the number of threads. Gradients
// and distances are converted once, and kept while a token may still collect from them.

#include "permutation.h"
#include "vector.h"

namespace rifflemix::permutation {

using rifflemix::store;

constexpr int64_t kTokensOfTask = 512;  // and no fewer than eight windows
constexpr int kAtOnce = 4;              // vectors that are summed side by side

template <class T>
struct Collecting {
  const Problem& p;
  int64_t width;  // channels of a block
  int64_t rows;   // outputs that are kept, a power of two; that of token n is in row n % rows
  int64_t blocks, stretches, stretch;
  float* grads;   // (slots, rows, width)
  int32_t* agos;  // the same; -1 where there is no output

  Collecting(const Problem& problem, Arena& arena)
      : p(problem),
        width(p.group_size <= 8 ? 256 : 64),
        rows(1),
        blocks(quotient_up(p.channels, width)),
        stretch(std::max(kTokensOfTask, 8 * p.group_size)) {
    stretches = quotient_up(p.length, stretch);
    while (rows < p.group_size) rows *= 2;
    grads = arena.take<float>(p.useful_threads() * rows * width);
    agos = arena.take<int32_t>(p.useful_threads() * rows * width);
  }
};

// A stretch of tokens of a block of channels of a sample. The problem is copied: a store could else
// change it, for all that a compiler knows.
template <class T>
struct Outputs {
  using V = rifflemix::Vector<float>;
  using Integers = rifflemix::VectorOf<float>::Integers;
  static constexpr int64_t lanes = rifflemix::kLanes<float>;

  const Problem p;
  const int64_t width, mask, b, first, last, channel, count;
  float* const grads;
  int32_t* const agos;

  RIFFLEMIX_INLINE Outputs(const Collecting<T>& f, int64_t task, int64_t of)
      : p(f.p),
        width(f.width),
        mask(f.rows - 1),
        b(task / f.blocks / f.stretches),
        first(task / f.blocks % f.stretches * f.stretch),
        last(std::min(p.length, first + f.stretch)),
        channel(task % f.blocks * width),
        count(std::min(width, p.channels - channel)),
        grads(f.grads + of * f.rows * width),
        agos(f.agos + of * f.rows * width) {}

  RIFFLEMIX_INLINE int64_t place(int64_t n) const {
    return (b * p.length + n) * p.channels + channel;
  }

  // Converts the output of token n.
  RIFFLEMIX_INLINE void read(int64_t n) const {
    float* grad = grads + (n & mask) * width;
    int32_t* ago = agos + (n & mask) * width;
    if (n >= p.length) {
      std::fill_n(ago, width, -1);
      return;
    }
    const T* from = static_cast<const T*>(p.x) + b * p.batch_stride + n * p.row_stride + channel;
    const uint8_t* back = static_cast<const uint8_t*>(p.index) + place(n);
    const int64_t whole = count / lanes * lanes;
    for (int64_t at = 0; at < whole; at += lanes) store(grad + at, rifflemix::load(from + at));
    if (whole < count) store(grad + whole, rifflemix::load(from + whole, count - whole));
    for (int64_t c = 0; c < count; ++c) ago[c] = back[c];
  }

  // Sums for token n, whose outputs have been read.
  RIFFLEMIX_INLINE void write(int64_t n) const {
    T* out = static_cast<T*>(p.y) + place(n);
    for (int64_t at = 0; at < count; at += kAtOnce * lanes) {
      V sums[kAtOnce] = {};
      for (int64_t j = 0; j < p.group_size; ++j) {
        const int64_t row = ((n + j) & mask) * width + at;
#pragma GCC unroll 4
        for (int i = 0; i < kAtOnce; ++i) {
          const Integers took = load<Integers>(agos + row + i * lanes) == static_cast<int32_t>(j);
          sums[i] += rifflemix::select<float>(took, rifflemix::load(grads + row + i * lanes), V{});
        }
      }
      if (at + kAtOnce * lanes <= count) {
#pragma GCC unroll 4
        for (int i = 0; i < kAtOnce; ++i) store(out + at + i * lanes, sums[i]);
      } else {
        for (int i = 0; at + i * lanes < count; ++i) {
          store(out + at + i * lanes, sums[i], count - at - i * lanes);
        }
      }
    }
  }
};

template <class T>
RIFFLEMIX_INLINE void collect_stretch(const Collecting<T>& f, int64_t task, int64_t of) {
  const Outputs<T> outputs(f, task, of);
  const int64_t ahead = outputs.p.group_size - 1;
  for (int64_t n = outputs.first; n < outputs.first + ahead; ++n) outputs.read(n);
  for (int64_t n = outputs.first; n < outputs.last; ++n) {
    outputs.read(n + ahead);
    outputs.write(n);
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
