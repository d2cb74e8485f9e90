// Depthwise convolution over a few tokens, and the gradient of its factors.
//
//   y[n, c] = bias[c] + sum over i of weight[i, c] x[n + first + i, c]
//
// Tokens outside of x are 0. Sums are float or double. A sum over tokens adds the sums of short
// runs in double, so that it keeps its digits in long sequences.

#include "threads.h"
#include "vector.h"

namespace rifflemix::short_convolution {

constexpr int64_t kRows = 64;   // outputs per task
constexpr int64_t kTile = 256;  // channels that are convolved together: their taps fit the cache
constexpr int64_t kSums = 32;   // channels per task of the gradient

// In the order of ops/convolution/cpu.py.
struct Sizes {
  int64_t batch, length, channels, outputs, taps, first;
  int64_t x_batch, x_row, y_batch, y_row;  // strides
  int64_t threads;

  // The taps of output n that read tokens of x: from tap `begin_tap` to tap `end_tap` - 1.
  RIFFLEMIX_INLINE int64_t begin_tap(int64_t n) const {
    return std::min(taps, std::max<int64_t>(0, -(n + first)));
  }
  RIFFLEMIX_INLINE int64_t end_tap(int64_t n) const {
    return std::max<int64_t>(0, std::min(taps, length - (n + first)));
  }
};

template <class T>
struct Problem {
  Sizes size;
  const T* x;
  T* y;
  const Acc<T>* weight;
  const Acc<T>* bias;  // or null
};

// Computes the channels c, c + 1, ... (up to `end`) of output n.
template <class T>
RIFFLEMIX_INLINE void convolve_row(const Problem<T>& p, const T* x, T* y, int64_t n, int64_t c,
                                   int64_t end) {
  const Sizes& s = p.size;
  const int64_t begin_tap = s.begin_tap(n), end_tap = s.end_tap(n);
  for (; c < end; c += kLanes<Acc<T>>) {
    const int64_t count = s.channels - c;
    Vector<Acc<T>> sum{};
    if (p.bias != nullptr) sum = load(p.bias + c, count);
    for (int64_t i = begin_tap; i < end_tap; ++i) {
      sum += load(p.weight + i * s.channels + c, count) *
             load(x + (n + s.first + i) * s.x_row + c, count);
    }
    store(y + n * s.y_row + c, sum, count);
  }
}

template <class T>
RIFFLEMIX_INLINE void convolve(const Problem<T>& p, int64_t task) {
  const Sizes& s = p.size;
  const int64_t blocks = (s.outputs + kRows - 1) / kRows;
  const int64_t b = task / blocks, begin = task % blocks * kRows;
  const int64_t end = std::min(s.outputs, begin + kRows);
  for (int64_t c = 0; c < s.channels; c += kTile) {
    for (int64_t n = begin; n < end; ++n) {
      convolve_row(p, p.x + b * s.x_batch, p.y + b * s.y_batch, n, c,
                   std::min(s.channels, c + kTile));
    }
  }
}

// Adds to `total` the products of the outputs' gradients and the tokens that tap i read. Tap -1
// stands for the bias, which reads 1.
template <class T>
RIFFLEMIX_INLINE void add_run(const Problem<T>& p, const T* x, const T* grad, int64_t begin,
                              int64_t end, int64_t i, int64_t c, double* total) {
  using A = Acc<T>;
  constexpr int64_t parts = kSums / kLanes<A>;
  const Sizes& s = p.size;
  Vector<A> sums[parts] = {};
  for (int64_t n = begin; n < end; ++n) {
    for (int64_t j = 0; j < parts && c + j * kLanes<A> < s.channels; ++j) {
      const int64_t at = c + j * kLanes<A>, count = s.channels - at;
      const Vector<A> slope = load(grad + n * s.y_row + at, count);
      sums[j] += i < 0 ? slope : slope * load(x + (n + s.first + i) * s.x_row + at, count);
    }
  }
  A values[kSums];
  for (int64_t j = 0; j < parts; ++j) store(values + j * kLanes<A>, sums[j]);
  for (int64_t j = 0; j < kSums; ++j) total[j] += values[j];
}

// Computes the gradients of kSums channels: a run of tokens stays in the cache for all taps. The
// last kSums of the (taps + 1) * kSums totals belong to the bias.
template <class T>
RIFFLEMIX_INLINE void sum_weights(const Problem<T>& p, int64_t c, double* totals, Acc<T>* weight,
                                  Acc<T>* bias) {
  const Sizes& s = p.size;
  std::fill(totals, totals + (s.taps + 1) * kSums, 0.0);
  for (int64_t b = 0; b < s.batch; ++b) {
    const T *x = p.x + b * s.x_batch, *grad = p.y + b * s.y_batch;
    for (int64_t begin = 0; begin < s.outputs; begin += kRows) {
      const int64_t end = std::min(s.outputs, begin + kRows);
      for (int64_t i = 0; i < s.taps; ++i) {
        const int64_t shift = s.first + i;  // outputs -shift to length - shift read tokens
        add_run(p, x, grad, std::max(begin, -shift), std::min(end, s.length - shift), i, c,
                totals + i * kSums);
      }
      add_run(p, x, grad, begin, end, -1, c, totals + s.taps * kSums);
    }
  }
  const int64_t count = std::min(kSums, s.channels - c);
  for (int64_t i = 0; i <= s.taps; ++i) {
    Acc<T>* out = i < s.taps ? weight + i * s.channels + c : bias + c;
    std::copy(totals + i * kSums, totals + i * kSums + count, out);
  }
}

#define RIFFLEMIX_SHORT_CONVOLUTION_TASKS(T)                                                      \
  RIFFLEMIX_DISPATCH(void, run_outputs, (const Problem<T>& p, int64_t first, int64_t last),       \
                     (p, first, last), {                                                          \
    for (int64_t task = first; task < last; ++task) convolve(p, task);                            \
  })                                                                                              \
  RIFFLEMIX_DISPATCH(void, run_sums,                                                              \
                     (const Problem<T>& p, Acc<T>* weight, Acc<T>* bias, int64_t first,           \
                      int64_t last),                                                              \
                     (p, weight, bias, first, last), {                                            \
    std::vector<double> totals((p.size.taps + 1) * kSums);                                        \
    for (int64_t task = first; task < last; ++task) {                                             \
      sum_weights(p, task * kSums, totals.data(), weight, bias);                                  \
    }                                                                                             \
  })
RIFFLEMIX_SHORT_CONVOLUTION_TASKS(float)
RIFFLEMIX_SHORT_CONVOLUTION_TASKS(double)
RIFFLEMIX_SHORT_CONVOLUTION_TASKS(Bfloat16)
RIFFLEMIX_SHORT_CONVOLUTION_TASKS(Float16)

template <class T>
int outputs(const Problem<T>& p) {
  const int64_t tasks = p.size.batch * ((p.size.outputs + kRows - 1) / kRows);
  return guarded([&] {
    parallel_for(tasks, static_cast<int>(p.size.threads),
                 [&](int64_t first, int64_t last) { run_outputs(p, first, last); });
    return 0;
  });
}

template <class T>
int sums(const Problem<T>& p, Acc<T>* weight, Acc<T>* bias) {
  const int64_t tasks = (p.size.channels + kSums - 1) / kSums;
  return guarded([&] {
    parallel_for(tasks, static_cast<int>(p.size.threads),
                 [&](int64_t first, int64_t last) { run_sums(p, weight, bias, first, last); });
    return 0;
  });
}

}  // namespace rifflemix::short_convolution

#define RIFFLEMIX_SHORT_CONVOLUTION(name, T)                                                      \
  RIFFLEMIX_EXPORT int rifflemix_short_convolution_##name(                                        \
      const rifflemix::short_convolution::Sizes* sizes, const T* x, T* y,                         \
      const rifflemix::Acc<T>* weight, const rifflemix::Acc<T>* bias) {                           \
    return rifflemix::short_convolution::outputs<T>({*sizes, x, y, weight, bias});                \
  }                                                                                               \
  RIFFLEMIX_EXPORT int rifflemix_short_convolution_weights_##name(                                \
      const rifflemix::short_convolution::Sizes* sizes, const T* x, T* grad,                      \
      rifflemix::Acc<T>* weight, rifflemix::Acc<T>* bias) {                                       \
    return rifflemix::short_convolution::sums<T>({*sizes, x, grad, nullptr, nullptr}, weight,     \
                                                 bias);                                           \
  }
RIFFLEMIX_SHORT_CONVOLUTION(float32, float)
RIFFLEMIX_SHORT_CONVOLUTION(float64, double)
RIFFLEMIX_SHORT_CONVOLUTION(bfloat16, rifflemix::Bfloat16)
RIFFLEMIX_SHORT_CONVOLUTION(float16, rifflemix::Float16)
