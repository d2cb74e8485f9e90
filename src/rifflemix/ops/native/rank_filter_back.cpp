// The gradient of the rank filter: each token collects from those that took it.
//
// Sums are in float32, from the token's own output on, whatever the number of threads.

#include "permutation.h"
#include "vector.h"

namespace rifflemix::permutation {

using rifflemix::store;

// The sum of the gradients that go to token n of sample b, channels `at`..at+some-1.
template <bool kWhole, class T>
RIFFLEMIX_INLINE void collect(const Problem& p, int64_t b, int64_t n, int64_t at, int64_t some) {
  constexpr int lanes = rifflemix::kLanes<float>;
  using Floats = rifflemix::Vector<float>;
  using Integers = rifflemix::VectorOf<float>::Integers;
  using Bytes = Vector<uint8_t, lanes>;
  const int64_t takers = std::min(p.group_size, p.length - n);
  const T* grad = static_cast<const T*>(p.x) + b * p.batch_stride + n * p.row_stride + at;
  const int64_t place = (b * p.length + n) * p.channels + at;
  const uint8_t* back = static_cast<const uint8_t*>(p.index) + place;
  Floats sum = {};
  for (int64_t j = 0; j < takers; ++j, grad += p.row_stride, back += p.channels) {
    Bytes bytes = {};
    std::memcpy(&bytes, back, kWhole ? lanes : some);
    const Integers took = __builtin_convertvector(bytes, Integers) == static_cast<int32_t>(j);
    const Floats value = kWhole ? rifflemix::load(grad) : rifflemix::load(grad, some);
    sum += rifflemix::select<float>(took, value, Floats{});
  }
  T* out = static_cast<T*>(p.y) + place;
  kWhole ? store(out, sum) : store(out, sum, some);
}

template <class T>
RIFFLEMIX_INLINE void collect_tokens(const Problem& problem, int64_t first, int64_t last) {
  const Problem p = problem;  // for all that a compiler knows, a store could change the other
  constexpr int64_t lanes = rifflemix::kLanes<float>;
  const int64_t whole = p.channels / lanes * lanes;
  for (int64_t row = first; row < last; ++row) {
    const int64_t b = row / p.length, n = row % p.length;
    for (int64_t at = 0; at < whole; at += lanes) collect<true, T>(p, b, n, at, lanes);
    if (whole < p.channels) collect<false, T>(p, b, n, whole, p.channels - whole);
  }
}

#define RIFFLEMIX_COLLECT(T)                                                                     \
  RIFFLEMIX_DISPATCH(void, collect_tokens_of,                                                    \
                     (const Problem& p, T, int64_t first, int64_t last), (p, T{}, first, last), { \
    collect_tokens<T>(p, first, last);                                                           \
  })
RIFFLEMIX_COLLECT(float)
RIFFLEMIX_COLLECT(rifflemix::Bfloat16)
RIFFLEMIX_COLLECT(rifflemix::Float16)

template <class T>
void rank_filter_back(const Problem& p) {
  share(p, p.batch * p.length, [&](int64_t first, int64_t last, int64_t) {
    collect_tokens_of(p, T{}, first, last);
  });
}

}  // namespace rifflemix::permutation

RIFFLEMIX_EXPORT int64_t rifflemix_rank_filter_back(const rifflemix::permutation::Problem* p) {
  using rifflemix::permutation::rank_filter_back;
  if (p->scratch == nullptr) return 0;
  return rifflemix::guarded([&]() -> int64_t {
    if (p->element_bytes == 4) {
      rank_filter_back<float>(*p);
    } else if (p->infinity == 0x7C00) {
      rank_filter_back<rifflemix::Float16>(*p);
    } else {
      rank_filter_back<rifflemix::Bfloat16>(*p);
    }
    return 0;
  });
}
