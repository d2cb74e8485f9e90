// Projection of sorted columns onto the permutahedron by pooling adjacent violators.
//
// A block is a run of tokens with a common mean. If a new token violates the order of the fit, its
// block is merged with the block before, repeatedly. Every block is merged at most once, so the
// time is linear. One thread processes a column, and sums are in double. The result therefore does
// not depend on the number of threads.

#include <cmath>
#include <limits>

#include "permutation.h"
#include "vector.h"

namespace rifflemix::permutation {

using rifflemix::store;

constexpr int64_t kColumns = 16;  // columns per task
constexpr int64_t kAhead = 8;     // rows to prefetch
constexpr double kSteepest = 1e300;

// Tokens from `first` up to the start of the next block.
struct Block {
  double mean;
  int64_t first;
};

// Sizes and scratch memory of a projection or its gradient.
struct Projecting {
  const Problem& p;
  int64_t lines;    // groups of kColumns channels
  int64_t stride;   // distance of columns, chosen so that they do not share cache sets
  bool ranks;
  double slope;     // soft sort: step from rank to rank; soft ranks: temperature
  double inverse;
  float* columns;   // (slots, kColumns, stride)
  uint8_t* starts;  // (slots, kColumns, stride): 1 at the start of a block
  Block* blocks;    // (slots, group_size)

  Projecting(const Problem& problem, Arena& arena)
      : p(problem),
        lines(quotient_up(p.channels, kColumns)),
        stride(p.group_size + kLineBytes),
        ranks(p.heads > 0) {
    const double steep = std::min(1 / p.temperature, kSteepest);
    slope = ranks ? p.temperature : steep;
    inverse = ranks ? steep : p.temperature;
    columns = arena.take<float>(p.useful_threads() * kColumns * stride);
    starts = arena.take<uint8_t>(p.useful_threads() * kColumns * stride);
    blocks = arena.take<Block>(p.useful_threads() * p.group_size);
  }
};

// Finds the blocks of a sorted column. Two neighbors with centers `run` tokens apart are merged if
// their means rise by more (soft sort) or less (soft ranks) than the slope allows.
RIFFLEMIX_INLINE int64_t pool(const float* column, int64_t count, double slope, bool ranks,
                              Block* blocks) {
  int64_t top = 0;
  for (int64_t i = 0; i < count; ++i) {
    Block last{column[i], i};
    while (top > 0) {
      const Block& before = blocks[top - 1];
      const double both = static_cast<double>(i + 1 - before.first);
      const double rise = last.mean - before.mean, allowed = slope * (0.5 * both);
      if (!(ranks ? rise < allowed : rise > allowed)) break;
      last.mean = before.mean + rise * (static_cast<double>(i + 1 - last.first) / both);
      last.first = before.first;
      --top;
    }
    blocks[top++] = last;
  }
  return top;
}

// Projects a column in place and marks the starts of its blocks. A column with an infinity or NaN
// has no projection and becomes NaN.
RIFFLEMIX_INLINE void project_column(const Projecting& of, float* column, int64_t count,
                                     Block* blocks, uint8_t* starts) {
  std::fill(starts, starts + count, uint8_t{0});
  if (count == 0) return;
  starts[0] = 1;
  if (!std::isfinite(column[0]) || !std::isfinite(column[count - 1])) {
    std::fill(column, column + count, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const bool ranks = of.ranks;
  const double slope = of.slope, inverse = of.inverse;
  const int64_t found = pool(column, count, slope, ranks, blocks);
  for (int64_t block = 0; block < found; ++block) {
    const int64_t first = blocks[block].first;
    const int64_t end = block + 1 < found ? blocks[block + 1].first : count;
    const double mean = blocks[block].mean, centre = 0.5 * static_cast<double>(first + end - 1);
    starts[first] = 1;
    for (int64_t i = first; i < end; ++i) {
      const double fitted = ranks ? centre + (column[i] - mean) * inverse
                                  : mean + (static_cast<double>(i) - centre) * slope;
      column[i] = static_cast<float>(fitted);
    }
  }
}

// Computes the gradient in place. Soft sort: the mean of each block. Soft ranks: the difference
// from this mean, divided by the temperature.
RIFFLEMIX_INLINE void average_column(const Projecting& of, float* column, int64_t count,
                                     const uint8_t* starts) {
  for (int64_t first = 0, end; first < count; first = end) {
    double sum = column[first];
    for (end = first + 1; end < count && starts[end] == 0; ++end) sum += column[end];
    const double mean = sum / static_cast<double>(end - first);
    for (int64_t i = first; i < end; ++i) {
      const double value = of.ranks ? (column[i] - mean) * of.inverse : mean;
      column[i] = static_cast<float>(value);
    }
  }
}

// Processes one group of kColumns channels; the columns contain only the valid tokens.
template <bool kBack, class T>
RIFFLEMIX_INLINE void project_tile(const Projecting& of, int64_t task, int64_t slot) {
  const Problem p = of.p;
  constexpr int64_t lanes = rifflemix::kLanes<float>;
  const int64_t size = p.group_size, groups = p.length / size, stride = of.stride;
  const int64_t channel = task % of.lines * kColumns;
  const int64_t b = task / of.lines / groups, start = task / of.lines % groups * size;
  const int64_t count = std::min(kColumns, p.channels - channel);
  float* columns = of.columns + slot * kColumns * stride;
  uint8_t* starts = of.starts + slot * kColumns * stride;
  uint8_t* marks = p.index_bytes == 0 ? nullptr : static_cast<uint8_t*>(p.index) + channel;
  int64_t valid = 0;
  for (int64_t n = start; n < start + size; ++n) {
    if (p.padded(b, n)) continue;
    const T* x = p.row<T>(b, n) + channel;
    if (n + kAhead < start + size) __builtin_prefetch(x + kAhead * p.row_stride);
    for (int64_t at = 0; at < count; at += lanes) {
      const rifflemix::Vector<float> values = rifflemix::load(x + at, count - at);
      for (int64_t j = 0; j < lanes; ++j) columns[(at + j) * stride + valid] = values[j];
    }
    for (int64_t j = 0; j < count && kBack; ++j) {
      starts[j * stride + valid] = marks[(b * p.length + n) * p.channels + j];
    }
    ++valid;
  }
  for (int64_t j = 0; j < count; ++j) {
    float* column = columns + j * stride;
    if constexpr (kBack) {
      average_column(of, column, valid, starts + j * stride);
    } else {
      project_column(of, column, valid, of.blocks + slot * size, starts + j * stride);
    }
  }
  valid = 0;
  for (int64_t n = start; n < start + size; ++n) {
    const int64_t out = (b * p.length + n) * p.channels;
    const bool padded = p.padded(b, n);
    T* y = static_cast<T*>(p.y) + out + channel;
    for (int64_t at = 0; at < count; at += lanes) {
      rifflemix::Vector<float> values = {};
      for (int64_t j = 0; j < lanes && !padded; ++j) values[j] = columns[(at + j) * stride + valid];
      store(y + at, values, count - at);
    }
    for (int64_t j = 0; j < count && !kBack && marks != nullptr; ++j) {
      marks[out + j] = padded ? uint8_t{0} : starts[j * stride + valid];
    }
    valid += !padded;
  }
}

#define RIFFLEMIX_PROJECT(T)                                                                     \
  RIFFLEMIX_DISPATCH(void, project_tile_of,                                                      \
                     (const Projecting& of, T, bool back, int64_t task, int64_t slot),           \
                     (of, T{}, back, task, slot), {                                              \
    back ? project_tile<true, T>(of, task, slot) : project_tile<false, T>(of, task, slot);       \
  })
RIFFLEMIX_PROJECT(float)
RIFFLEMIX_PROJECT(rifflemix::Bfloat16)
RIFFLEMIX_PROJECT(rifflemix::Float16)

template <class T>
int64_t project(const Problem& p, bool back) {
  Arena arena(p.scratch);
  const Projecting of(p, arena);
  if (p.scratch == nullptr) return arena.used();
  share(p, p.batch * (p.length / p.group_size) * of.lines,
        [&](int64_t first, int64_t last, int64_t slot) {
    for (int64_t task = first; task < last; ++task) project_tile_of(of, T{}, back, task, slot);
  });
  return 0;
}

int64_t project(const Problem* p, bool back) {
  return rifflemix::guarded([&] {
    if (p->element_bytes == 4) return project<float>(*p, back);
    if (p->infinity == 0x7C00) return project<rifflemix::Float16>(*p, back);
    return project<rifflemix::Bfloat16>(*p, back);
  });
}

}  // namespace rifflemix::permutation

RIFFLEMIX_EXPORT int64_t rifflemix_project(const rifflemix::permutation::Problem* p) {
  return rifflemix::permutation::project(p, false);
}

RIFFLEMIX_EXPORT int64_t rifflemix_project_back(const rifflemix::permutation::Problem* p) {
  return rifflemix::permutation::project(p, true);
}
