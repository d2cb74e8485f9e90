// Shared by the kernels of token statistics: sizes, views, and the softmax over heads.
//
// The tokens of a sample are split into chunks of fixed length. Every sum over tokens adds the sums
// of the chunks in order, in double. Results therefore do not depend on the number of threads, and
// rounding errors do not grow with the number of tokens.
//
// Statistics per feature have the layout (..., heads, width); `width` is the number of features of
// a head, padded to whole vectors. Statistics per token have the layout (batch, length, heads).

#pragma once

#include <cstdint>

#include "threads.h"
#include "vector.h"

namespace rifflemix {

constexpr double kNormFloor = 1e-12;    // minimum norm of a feature column over the tokens
constexpr double kEnergyFloor = 1e-12;  // minimum of the causal running sum of squares
constexpr double kCountOffset = 1e-8;   // added to the number of tokens in a group

// Python passes these fields as an int64 array in this order.
struct Sizes {
  int64_t batch, heads, length, features, width, chunk, threads;

  int64_t chunks() const { return (length + chunk - 1) / chunk; }
  int64_t row() const { return heads * width; }
  // Starting a thread takes as long as processing a hundred thousand values.
  int useful_threads() const {
    const int64_t values = batch * length * heads * features;
    return static_cast<int>(std::max<int64_t>(1, std::min(threads, values >> 18)));
  }
};

// (batch, heads, length, features) with stride 1 for features and any other strides.
template <class T>
struct View {
  T* data;
  int64_t batch, head, token;

  View(T* pointer, const int64_t* strides)
      : data(pointer), batch(strides[0]), head(strides[1]), token(strides[2]) {}
  RIFFLEMIX_INLINE T* at(int64_t b, int64_t n) const { return data + b * batch + n * token; }
};

// One chunk of one sample; `task` counts chunks over all samples.
struct Chunk {
  int64_t task, sample, index, first, last, start;
  const uint8_t* padding;

  Chunk(const Sizes& sizes, const uint8_t* mask, int64_t task_)
      : task(task_),
        sample(task_ / sizes.chunks()),
        index(task_ % sizes.chunks()),
        first(index * sizes.chunk),
        last(std::min(first + sizes.chunk, sizes.length)),
        start(sample * sizes.length),
        padding(mask == nullptr ? nullptr : mask + start) {}
  // Index of token n of this sample among all tokens.
  RIFFLEMIX_INLINE int64_t token(int64_t n) const { return start + n; }
  RIFFLEMIX_INLINE bool padded(int64_t n) const { return padding != nullptr && padding[n] != 0; }
};

// Calls body(d, i, rest) for each vector of head h's features. d is its index in the head, i its
// index in a row of statistics. `rest` is the number of features in the vector. It is a constant
// for whole vectors, so inlined loads and stores do not check it.
template <class A, class Body>
RIFFLEMIX_INLINE void for_vectors(const Sizes& sizes, int64_t h, const Body& body) {
  constexpr int64_t lanes = kLanes<A>;
  const int64_t row = h * sizes.width, rest = sizes.features % lanes;
  const int64_t whole = sizes.features - rest;
  for (int64_t d = 0; d < whole; d += lanes) body(d, row + d, lanes);
  if (rest > 0) body(whole, row + whole, rest);
}

template <class T>
RIFFLEMIX_INLINE void zero_token(const Sizes& sizes, const View<T>& view, int64_t b, int64_t n) {
  for (int64_t h = 0; h < sizes.heads; ++h) {
    std::memset(static_cast<void*>(view.at(b, n) + h * view.head), 0, sizes.features * sizeof(T));
  }
}

// Computes the sum of squares of a chunk.
template <class T, class A = Acc<T>>
RIFFLEMIX_INLINE void sum_squares(const Sizes& sizes, const Chunk& chunk, const View<const T>& w,
                                  A* total) {
  std::fill(total, total + sizes.row(), A(0));
  for (int64_t n = chunk.first; n < chunk.last; ++n) {
    if (chunk.padded(n)) continue;
    const T* token = w.at(chunk.sample, n);
    for (int64_t h = 0; h < sizes.heads; ++h, token += w.head) {
      for_vectors<A>(sizes, h, [&](int64_t d, int64_t i, int64_t rest) RIFFLEMIX_BODY {
        const Vector<A> x = load(token + d, rest);
        store(total + i, load(total + i) + x * x);
      });
    }
  }
}

// Computes the sums of Pi w^2 and of Pi of a chunk; Pi is (batch, length, heads).
template <class T, class A = Acc<T>>
RIFFLEMIX_INLINE void sum_weighted_squares(const Sizes& sizes, const Chunk& chunk,
                                           const View<const T>& w, const A* membership,
                                           A* total, A* counts) {
  std::fill(total, total + sizes.row(), A(0));
  std::fill(counts, counts + sizes.heads, A(0));
  for (int64_t n = chunk.first; n < chunk.last; ++n) {
    if (chunk.padded(n)) continue;
    const A* weights = membership + chunk.token(n) * sizes.heads;
    const T* token = w.at(chunk.sample, n);
    for (int64_t h = 0; h < sizes.heads; ++h, token += w.head) {
      const A pi = weights[h];
      counts[h] += pi;
      for_vectors<A>(sizes, h, [&](int64_t d, int64_t i, int64_t rest) RIFFLEMIX_BODY {
        const Vector<A> x = load(token + d, rest);
        store(total + i, load(total + i) + x * x * pi);
      });
    }
  }
}

// Computes the softmax over heads in place for the (tokens, heads) logits of a chunk. The result is
// zero at padding.
template <class A>
RIFFLEMIX_INLINE void softmax_over_heads(const Chunk& chunk, int64_t heads, A* logits) {
  const int64_t tokens = chunk.last - chunk.first;
  for (int64_t n = 0; n < tokens; ++n) {
    A* row = logits + n * heads;
    A largest = row[0];
    for (int64_t h = 1; h < heads; ++h) largest = row[h] > largest ? row[h] : largest;
    for (int64_t h = 0; h < heads; ++h) row[h] -= largest;
  }
  const int64_t count = tokens * heads;
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    store(logits + i, exp_of_negative<A>(load(logits + i, count - i)), count - i);
  }
  for (int64_t n = 0; n < tokens; ++n) {
    A* row = logits + n * heads;
    if (chunk.padded(chunk.first + n)) {
      std::fill(row, row + heads, A(0));
      continue;
    }
    A total = 0;
    for (int64_t h = 0; h < heads; ++h) total += row[h];
    for (int64_t h = 0; h < heads; ++h) row[h] *= A(1) / total;
  }
}

// Computes the gradient of the softmax over the heads of one token, in place.
template <class A>
RIFFLEMIX_INLINE void softmax_gradient(int64_t heads, const A* membership, A* gradient) {
  A mean = 0;
  for (int64_t h = 0; h < heads; ++h) mean += membership[h] * gradient[h];
  for (int64_t h = 0; h < heads; ++h) gradient[h] = membership[h] * (gradient[h] - mean);
}

// Adds the (parts, size) values of one sample in order. The number of parts grows with the number
// of tokens, so a float sum would lose digits.
template <class A>
void sum_parts(const A* parts, int64_t count, int64_t size, A* total) {
  Buffer<double> sum(size);
  for (int64_t k = 0; k < count; ++k) {
    for (int64_t i = 0; i < size; ++i) sum[i] += parts[k * size + i];
  }
  for (int64_t i = 0; i < size; ++i) total[i] = static_cast<A>(sum[i]);
}

// Defines `dispatch` for tokens of type T: it calls `run` on a share of the chunks for the best
// instruction set. This is a macro because a template cannot be dispatched.
#define RIFFLEMIX_DISPATCH_STEPS(T)                                                      \
  RIFFLEMIX_DISPATCH(void, dispatch,                                                     \
                     (Step step, const Forward<T>& f, int64_t first, int64_t last),      \
                     (step, f, first, last), { run(step, f, first, last); })             \
  RIFFLEMIX_DISPATCH(void, dispatch,                                                     \
                     (Step step, const Backward<T>& g, int64_t first, int64_t last),     \
                     (step, g, first, last), { run(step, g, first, last); })

// Runs one step over all chunks of all samples. Throws std::bad_alloc if an allocation fails.
template <class Step, class Work>
void over_chunks(Step step, const Work& work) {
  parallel_for(work.sizes.batch * work.sizes.chunks(), work.sizes.useful_threads(),
               [&](int64_t first, int64_t last) {
    dispatch(step, work, first, last);
  });
}

}  // namespace rifflemix
