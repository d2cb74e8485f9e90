// Gradient of the rank filter: each token adds the gradients of the outputs that selected it.
//
// Sums are in float32 and start at the token's own output, for any number of threads. Gradients are
// read in place, with two exceptions that are copied to a buffer once: float16 gradients, because
// their conversion is slow, and gradients that do not fill whole vectors.

#include <type_traits>

#include "permutation.h"
#include "vector.h"

namespace rifflemix::permutation {

using rifflemix::Bfloat16;
using rifflemix::Float16;
using rifflemix::store;

constexpr int64_t kTokensOfTask = 512;  // minimum; a task also has at least eight windows
constexpr int64_t kMostWindow = 256;    // maximum tokens: distances fit in a byte
constexpr int64_t kMostWidth = 256;     // maximum channels in a block

// Sums of a vector of gradients of type T.
template <class T>
struct Sums {
  using Ago = int32_t;
  using Took = rifflemix::VectorOf<float>::Integers;
  static constexpr int64_t lanes = rifflemix::kLanes<float>;
  rifflemix::Vector<float> all = {};

  RIFFLEMIX_INLINE void add(const float* grad, const Ago* ago, Ago distance) {
    const auto bits = load<Took>(ago) == distance;
    all += rifflemix::select<float>(bits, rifflemix::load(grad), rifflemix::Vector<float>{});
  }
  template <class To>
  RIFFLEMIX_INLINE void write(To* to) const {
    store(to, all);
  }
};

// bfloat16 values are the upper halves of float32: even and odd elements are summed separately.
template <>
struct Sums<Bfloat16> {
  using Ago = int16_t;
  using Took = permutation::Vector<int16_t, rifflemix::kVectorBytes / 2>;
  using Words = rifflemix::WordBits;
  using Floats = rifflemix::Vector<float>;
  static constexpr int64_t lanes = rifflemix::kVectorBytes / 2;
  Floats even = {}, odd = {};

  RIFFLEMIX_INLINE void add(const Bfloat16* grad, const Ago* ago, Ago distance) {
    const Took bits = load<Took>(&grad->bits) & (load<Took>(ago) == distance);
    even += rifflemix::bits_as<Floats>((Words)bits << 16);
    odd += rifflemix::bits_as<Floats>((Words)bits & 0xffff0000u);
  }
  RIFFLEMIX_INLINE void write(Bfloat16* to) const {
    const Words both = (rifflemix::rounded_bits(even) >> 16) |
                       (rifflemix::rounded_bits(odd) & 0xffff0000u);
    std::memcpy(to, &both, sizeof(both));
  }
};

template <class T>
struct Collecting {
  using Source = std::conditional_t<std::is_same_v<T, Float16>, float, T>;
  using Ago = typename Sums<Source>::Ago;

  const Problem& p;
  int64_t width;  // channels in a block
  int64_t rows;   // buffered outputs, a power of two; token n is in row n % rows
  int64_t blocks, stretches, stretch;
  Source* grads;  // (slots, rows, width)
  Ago* agos;      // (slots, rows, width): distances; -1 without an output

  Collecting(const Problem& problem, Arena& arena)
      : p(problem),
        width(p.group_size <= 8 ? kMostWidth : kMostWidth / 4),
        rows(1),
        blocks(quotient_up(p.channels, width)),
        stretch(std::max(kTokensOfTask, 8 * p.group_size)) {
    stretches = quotient_up(p.length, stretch);
    while (rows < p.group_size) rows *= 2;
    grads = arena.take<Source>(p.useful_threads() * rows * width);
    agos = arena.take<Ago>(p.useful_threads() * rows * width);
  }
};

// A stretch of tokens in a block of channels of a sample. It contains a copy of the problem, so the
// compiler knows that stores do not change the problem.
template <class T>
struct Outputs {
  using Source = typename Collecting<T>::Source;
  using Ago = typename Collecting<T>::Ago;
  static constexpr int64_t lanes = Sums<Source>::lanes;

  const Problem p;
  const int64_t width, mask, b, first, last, channel, count;
  const bool direct;  // gradients are read in place
  Source* const grads;
  Ago* const agos;

  RIFFLEMIX_INLINE Outputs(const Collecting<T>& f, int64_t task, int64_t of)
      : p(f.p),
        width(f.width),
        mask(f.rows - 1),
        b(task / f.blocks / f.stretches),
        first(task / f.blocks % f.stretches * f.stretch),
        last(std::min(p.length, first + f.stretch)),
        channel(task % f.blocks * width),
        count(std::min(width, p.channels - channel)),
        direct(std::is_same_v<Source, T> && count % lanes == 0),
        grads(f.grads + of * f.rows * width),
        agos(f.agos + of * f.rows * width) {}

  RIFFLEMIX_INLINE int64_t place(int64_t n) const {
    return (b * p.length + n) * p.channels + channel;
  }
  RIFFLEMIX_INLINE const T* given(int64_t n) const {
    return static_cast<const T*>(p.x) + b * p.batch_stride + n * p.row_stride + channel;
  }
  RIFFLEMIX_INLINE const Source* grad(int64_t n) const {
    if constexpr (std::is_same_v<Source, T>) {
      if (direct) return given(std::min(n, p.length - 1));
    }
    return grads + (n & mask) * width;
  }

  // Converts the distances and, if necessary, the gradients of token n's output.
  RIFFLEMIX_INLINE void read(int64_t n) const {
    Ago* ago = agos + (n & mask) * width;
    if (n >= p.length) {
      std::fill_n(ago, width, Ago{-1});
      return;
    }
    const uint8_t* back = static_cast<const uint8_t*>(p.index) + place(n);
    for (int64_t c = 0; c < count; ++c) ago[c] = back[c];
    if (direct) return;
    Source* to = grads + (n & mask) * width;
    if constexpr (std::is_same_v<Source, T>) {
      std::memcpy(to, given(n), count * sizeof(T));
    } else {
      for (int64_t at = 0; at < count; at += lanes) {
        store(to + at, rifflemix::load(given(n) + at, count - at));
      }
    }
  }

  // Writes the sums of token n after its outputs were read. Processes two vectors at a time, and
  // the last vector twice if the number is odd.
  RIFFLEMIX_INLINE void write(int64_t n) const {
    const Source* from[kMostWindow];
    for (int64_t j = 0; j < p.group_size; ++j) from[j] = grad(n + j);
    T row[kMostWidth];
    T* const out = static_cast<T*>(p.y) + place(n);
    T* const to = count % lanes == 0 ? out : row;
    for (int64_t at = 0; at < count; at += 2 * lanes) {
      const int64_t next = at + lanes < count ? at + lanes : at;
      Sums<Source> sums, more;
      for (int64_t j = 0; j < p.group_size; ++j) {
        const Ago* ago = agos + ((n + j) & mask) * width;
        sums.add(from[j] + at, ago + at, static_cast<Ago>(j));
        more.add(from[j] + next, ago + next, static_cast<Ago>(j));
      }
      sums.write(to + at);
      more.write(to + next);
    }
    if (to == row) std::memcpy(out, row, count * sizeof(T));
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
RIFFLEMIX_COLLECT(Bfloat16)
RIFFLEMIX_COLLECT(Float16)

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
