// Dropout: some elements become zero, the others are scaled.

#include "kept.h"
#include "threads.h"
#include "vector.h"

namespace rifflemix::dropout {

constexpr int64_t kBlock = 2048;  // elements per task, a multiple of a tile

template <class T>
struct Problem {
  const T* x;
  T* y;
  int64_t count;
  Drop drop;
  Acc<T> scale;
};

template <class T>
RIFFLEMIX_INLINE void run(const Problem<T>& p, int64_t block) {
  using A = Acc<T>;
  const int64_t first = block * kBlock, count = std::min(kBlock, p.count - first);
  int16_t keep[kBlock + kTile];
  find_kept(p.drop, first, count, keep);
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    const Vector<A> x = load(p.x + first + i, count - i);
    store(p.y + first + i, where<A>(keep + i, x * p.scale), count - i);
  }
}

#define RIFFLEMIX_DROPOUT_BLOCKS(T)                                                               \
  RIFFLEMIX_DISPATCH(void, run_blocks, (const Problem<T>& p, int64_t first, int64_t last),        \
                     (p, first, last), {                                                          \
    for (int64_t block = first; block < last; ++block) run(p, block);                             \
  })
RIFFLEMIX_DROPOUT_BLOCKS(float)
RIFFLEMIX_DROPOUT_BLOCKS(double)
RIFFLEMIX_DROPOUT_BLOCKS(Bfloat16)
RIFFLEMIX_DROPOUT_BLOCKS(Float16)

template <class T>
int apply(const Problem<T>& p, int64_t threads) {
  const int64_t blocks = (p.count + kBlock - 1) / kBlock;
  return guarded([&] {
    parallel_for(blocks, static_cast<int>(threads),
                 [&](int64_t first, int64_t last) { run_blocks(p, first, last); });
    return 0;
  });
}

}  // namespace rifflemix::dropout

#define RIFFLEMIX_DROPOUT(name, T)                                                                \
  RIFFLEMIX_EXPORT int rifflemix_dropout_##name(const T* x, T* y, int64_t count,                  \
                                                const uint64_t* seed, uint32_t threshold,         \
                                                double scale, int64_t threads) {                  \
    const rifflemix::Drop drop{{static_cast<uint32_t>(*seed), static_cast<uint32_t>(*seed >> 32)},\
                               threshold};                                                        \
    return rifflemix::dropout::apply<T>(                                                          \
        {x, y, count, drop, static_cast<rifflemix::Acc<T>>(scale)}, threads);                     \
  }
RIFFLEMIX_DROPOUT(float32, float)
RIFFLEMIX_DROPOUT(float64, double)
RIFFLEMIX_DROPOUT(bfloat16, rifflemix::Bfloat16)
RIFFLEMIX_DROPOUT(float16, rifflemix::Float16)
