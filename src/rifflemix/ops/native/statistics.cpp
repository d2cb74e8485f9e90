// Bidirectional token statistics: each step reads the tokens once, chunk by chunk.
//
// Notation, for a token n and feature d of head h:
//   q = w^2, energy = sum_n q, scale = 1 / max(energy, floor) or 1 if not normalized
//   s = sum_d q scale, Pi = softmax_h(T s), count = sum_n Pi + offset
//   moment = sum_n Pi q / count, gate = 1 / (1 + moment), y = -w Pi gate

#include "statistics.h"

namespace rifflemix {
namespace {

// Arguments of the forward and the backward pass. T is (heads), the mask (batch, length) or null,
// Pi (batch, length, heads), energy and moment (batch, heads, width), count (batch, heads).
template <class T>
struct Problem {
  using A = Acc<T>;
  Sizes sizes;
  bool normalize;
  View<const T> w;
  const A* temperature;
  const uint8_t* mask;
  A *membership, *energy, *moment, *count;
  // Scratch: sums of each chunk, (batch, chunks, heads, width) and (batch, chunks, heads).
  A *feature_parts, *head_parts;
};

template <class T>
struct Forward : Problem<T> {
  View<T> y;
};

template <class T>
struct Backward : Problem<T> {
  using A = Acc<T>;
  View<const T> grad_y;
  const A* grad_membership;  // (batch, length, heads) or null
  View<T> grad_w;
  A* grad_temperature;
  // Scratch: gradients of s, of sum_n Pi q, of sum_n Pi and of the energy.
  A *grad_scores, *grad_sums, *grad_counts, *grad_energy;
};

template <class T>
RIFFLEMIX_INLINE Buffer<Acc<T>> scale_of_sample(const Problem<T>& p, int64_t b) {
  using A = Acc<T>;
  const A floor = A(kNormFloor * kNormFloor);
  const A* energy = p.energy + b * p.sizes.row();
  Buffer<A> scale(p.sizes.row(), A(1));
  if (!p.normalize) return scale;
  for (size_t i = 0; i < scale.size(); ++i) {
    scale[i] = A(1) / (energy[i] < floor ? floor : energy[i]);
  }
  return scale;
}

template <class T>
RIFFLEMIX_INLINE Buffer<Acc<T>> gate_of_sample(const Problem<T>& p, int64_t b) {
  using A = Acc<T>;
  const A* moment = p.moment + b * p.sizes.row();
  Buffer<A> gate(p.sizes.row());
  for (size_t i = 0; i < gate.size(); ++i) gate[i] = A(1) / (A(1) + moment[i]);
  return gate;
}

template <class T>
RIFFLEMIX_INLINE void energy_of_sample(const Forward<T>& f, int64_t b) {
  const int64_t row = f.sizes.row(), chunks = f.sizes.chunks();
  sum_parts(f.feature_parts + b * chunks * row, chunks, row, f.energy + b * row);
}

// Computes Pi of the chunk's tokens.
template <class T>
RIFFLEMIX_INLINE void find_membership(const Forward<T>& f, const Chunk& chunk) {
  using A = Acc<T>;
  const Sizes& sizes = f.sizes;
  const Buffer<A> scale = scale_of_sample(f, chunk.sample);
  A* membership = f.membership + chunk.token(chunk.first) * sizes.heads;
  for (int64_t n = chunk.first; n < chunk.last; ++n) {
    A* logits = f.membership + chunk.token(n) * sizes.heads;
    const T* token = f.w.at(chunk.sample, n);
    for (int64_t h = 0; h < sizes.heads; ++h, token += f.w.head) {
      Vector<A> score{};
      for_vectors<A>(sizes, h, [&](int64_t d, int64_t i, int64_t rest) RIFFLEMIX_BODY {
        const Vector<A> x = load(token + d, rest);
        score += x * x * load(&scale[i]);
      });
      logits[h] = f.temperature[h] * sum_lanes<A>(score);
    }
  }
  softmax_over_heads(chunk, sizes.heads, membership);
}

template <class T>
RIFFLEMIX_INLINE void moment_of_sample(const Forward<T>& f, int64_t b) {
  using A = Acc<T>;
  const Sizes& sizes = f.sizes;
  const int64_t row = sizes.row(), chunks = sizes.chunks();
  A *moment = f.moment + b * row, *count = f.count + b * sizes.heads;
  sum_parts(f.feature_parts + b * chunks * row, chunks, row, moment);
  sum_parts(f.head_parts + b * chunks * sizes.heads, chunks, sizes.heads, count);
  for (int64_t h = 0; h < sizes.heads; ++h) {
    count[h] += A(kCountOffset);
    for (int64_t i = h * sizes.width; i < (h + 1) * sizes.width; ++i) moment[i] /= count[h];
  }
}

template <class T>
RIFFLEMIX_INLINE void write_output(const Forward<T>& f, const Chunk& chunk) {
  using A = Acc<T>;
  const Sizes& sizes = f.sizes;
  const Buffer<A> gate = gate_of_sample(f, chunk.sample);
  for (int64_t n = chunk.first; n < chunk.last; ++n) {
    if (chunk.padded(n)) {
      zero_token(sizes, f.y, chunk.sample, n);
      continue;
    }
    const A* membership = f.membership + chunk.token(n) * sizes.heads;
    const T* token = f.w.at(chunk.sample, n);
    T* out = f.y.at(chunk.sample, n);
    for (int64_t h = 0; h < sizes.heads; ++h, token += f.w.head, out += f.y.head) {
      for_vectors<A>(sizes, h, [&](int64_t d, int64_t i, int64_t rest) RIFFLEMIX_BODY {
        store(out + d, -membership[h] * load(token + d, rest) * load(&gate[i]), rest);
      });
    }
  }
}

// Writes sum_d grad_y w gate of the chunk's tokens to `grad_scores`, and computes the chunk's sum
// of Pi grad_y w.
template <class T>
RIFFLEMIX_INLINE void sum_gate_gradient(const Backward<T>& g, const Chunk& chunk) {
  using A = Acc<T>;
  const Sizes& sizes = g.sizes;
  const Buffer<A> gate = gate_of_sample(g, chunk.sample);
  A* features = g.feature_parts + chunk.task * sizes.row();
  std::fill(features, features + sizes.row(), A(0));
  for (int64_t n = chunk.first; n < chunk.last; ++n) {
    if (chunk.padded(n)) continue;
    const int64_t at = chunk.token(n) * sizes.heads;
    const T* token = g.w.at(chunk.sample, n);
    const T* grad = g.grad_y.at(chunk.sample, n);
    for (int64_t h = 0; h < sizes.heads; ++h, token += g.w.head, grad += g.grad_y.head) {
      const A pi = g.membership[at + h];
      Vector<A> sum{};
      for_vectors<A>(sizes, h, [&](int64_t d, int64_t i, int64_t rest) RIFFLEMIX_BODY {
        const Vector<A> product = load(token + d, rest) * load(grad + d, rest);
        sum += product * load(&gate[i]);
        store(features + i, load(features + i) + product * pi);
      });
      g.grad_scores[at + h] = sum_lanes<A>(sum);
    }
  }
}

// Computes the gradients of sum_n Pi q and sum_n Pi. Both affect y only through the moment.
template <class T>
RIFFLEMIX_INLINE void moment_gradient_of_sample(const Backward<T>& g, int64_t b) {
  using A = Acc<T>;
  const Sizes& sizes = g.sizes;
  const int64_t row = sizes.row(), chunks = sizes.chunks();
  const Buffer<A> gate = gate_of_sample(g, b);
  const A* moment = g.moment + b * row;
  A* sums = g.grad_sums + b * row;
  sum_parts(g.feature_parts + b * chunks * row, chunks, row, sums);
  for (int64_t h = 0; h < sizes.heads; ++h) {
    const A count = g.count[b * sizes.heads + h];
    A along_moment = 0;
    for (int64_t i = h * sizes.width; i < (h + 1) * sizes.width; ++i) {
      sums[i] *= gate[i] * gate[i] / count;
      along_moment += sums[i] * moment[i];
    }
    g.grad_counts[b * sizes.heads + h] = -along_moment;
  }
}

// Writes the gradient of s to `grad_scores`, and computes the chunk's parts of the gradients of the
// scale and of T.
template <class T>
RIFFLEMIX_INLINE void find_score_gradient(const Backward<T>& g, const Chunk& chunk) {
  using A = Acc<T>;
  const Sizes& sizes = g.sizes;
  const int64_t heads = sizes.heads;
  const Buffer<A> scale = scale_of_sample(g, chunk.sample);
  const A* sums = g.grad_sums + chunk.sample * sizes.row();
  const A* counts = g.grad_counts + chunk.sample * heads;
  A* features = g.feature_parts + chunk.task * sizes.row();
  A* temperatures = g.head_parts + chunk.task * heads;
  std::fill(features, features + sizes.row(), A(0));
  std::fill(temperatures, temperatures + heads, A(0));
  Buffer<A> scores(heads);
  for (int64_t n = chunk.first; n < chunk.last; ++n) {
    if (chunk.padded(n)) continue;
    const int64_t at = chunk.token(n) * heads;
    A* gradient = g.grad_scores + at;
    const T* token = g.w.at(chunk.sample, n);
    for (int64_t h = 0; h < heads; ++h) {
      Vector<A> score{}, through_sums{};
      for_vectors<A>(sizes, h, [&](int64_t d, int64_t i, int64_t rest) RIFFLEMIX_BODY {
        const Vector<A> x = load(token + h * g.w.head + d, rest);
        score += x * x * load(&scale[i]);
        through_sums += x * x * load(sums + i);
      });
      scores[h] = sum_lanes<A>(score);
      gradient[h] = sum_lanes<A>(through_sums) + counts[h] - gradient[h];
      if (g.grad_membership != nullptr) gradient[h] += g.grad_membership[at + h];
    }
    softmax_gradient(heads, g.membership + at, gradient);
    for (int64_t h = 0; h < heads; ++h) {
      temperatures[h] += gradient[h] * scores[h];
      gradient[h] *= g.temperature[h];
      for_vectors<A>(sizes, h, [&](int64_t d, int64_t i, int64_t rest) RIFFLEMIX_BODY {
        const Vector<A> x = load(token + h * g.w.head + d, rest);
        store(features + i, load(features + i) + x * x * gradient[h]);
      });
    }
  }
}

// Computes the gradient of the energy through the scale; zero without a scale or below the floor.
template <class T>
RIFFLEMIX_INLINE void energy_gradient_of_sample(const Backward<T>& g, int64_t b) {
  using A = Acc<T>;
  const int64_t row = g.sizes.row(), chunks = g.sizes.chunks();
  const A floor = A(kNormFloor * kNormFloor);
  const Buffer<A> scale = scale_of_sample(g, b);
  const A* energy = g.energy + b * row;
  A* gradient = g.grad_energy + b * row;
  sum_parts(g.feature_parts + b * chunks * row, chunks, row, gradient);
  for (int64_t i = 0; i < row; ++i) {
    const bool constant = !g.normalize || energy[i] < floor;
    gradient[i] = constant ? A(0) : -(gradient[i] * scale[i]) * scale[i];
  }
}

template <class T>
RIFFLEMIX_INLINE void write_token_gradient(const Backward<T>& g, const Chunk& chunk) {
  using A = Acc<T>;
  const Sizes& sizes = g.sizes;
  const Buffer<A> scale = scale_of_sample(g, chunk.sample);
  const Buffer<A> gate = gate_of_sample(g, chunk.sample);
  const A* sums = g.grad_sums + chunk.sample * sizes.row();
  const A* energy = g.grad_energy + chunk.sample * sizes.row();
  for (int64_t n = chunk.first; n < chunk.last; ++n) {
    if (chunk.padded(n)) {
      zero_token(sizes, g.grad_w, chunk.sample, n);
      continue;
    }
    const int64_t at = chunk.token(n) * sizes.heads;
    const T* token = g.w.at(chunk.sample, n);
    const T* grad = g.grad_y.at(chunk.sample, n);
    T* out = g.grad_w.at(chunk.sample, n);
    for (int64_t h = 0; h < sizes.heads; ++h) {
      const A pi = g.membership[at + h], score = g.grad_scores[at + h];
      for_vectors<A>(sizes, h, [&](int64_t d, int64_t i, int64_t rest) RIFFLEMIX_BODY {
        const Vector<A> x = load(token + d, rest);
        const Vector<A> along_q = score * load(&scale[i]) + pi * load(sums + i) + load(energy + i);
        store(out + d, A(2) * x * along_q - pi * load(grad + d, rest) * load(&gate[i]), rest);
      });
      token += g.w.head, grad += g.grad_y.head, out += g.grad_w.head;
    }
  }
}

enum class Step { kEnergy, kMoment, kOutput, kGate, kScores, kTokens };

template <class T>
RIFFLEMIX_INLINE void run(Step step, const Forward<T>& f, int64_t first, int64_t last) {
  using A = Acc<T>;
  for (int64_t task = first; task < last; ++task) {
    const Chunk chunk(f.sizes, f.mask, task);
    A* features = f.feature_parts + task * f.sizes.row();
    A* counts = f.head_parts + task * f.sizes.heads;
    if (step == Step::kEnergy) sum_squares(f.sizes, chunk, f.w, features);
    if (step == Step::kMoment) {
      find_membership(f, chunk);
      sum_weighted_squares(f.sizes, chunk, f.w, f.membership, features, counts);
    }
    if (step == Step::kOutput) write_output(f, chunk);
  }
}

template <class T>
RIFFLEMIX_INLINE void run(Step step, const Backward<T>& g, int64_t first, int64_t last) {
  for (int64_t task = first; task < last; ++task) {
    const Chunk chunk(g.sizes, g.mask, task);
    if (step == Step::kGate) sum_gate_gradient(g, chunk);
    if (step == Step::kScores) find_score_gradient(g, chunk);
    if (step == Step::kTokens) write_token_gradient(g, chunk);
  }
}

RIFFLEMIX_DISPATCH_STEPS(float)
RIFFLEMIX_DISPATCH_STEPS(double)
RIFFLEMIX_DISPATCH_STEPS(Bfloat16)
RIFFLEMIX_DISPATCH_STEPS(Float16)

template <class T>
int forward(const Forward<T>& f) {
  return guarded([&] {
    if (f.normalize) {
      over_chunks(Step::kEnergy, f);
      for (int64_t b = 0; b < f.sizes.batch; ++b) energy_of_sample(f, b);
    }
    over_chunks(Step::kMoment, f);
    for (int64_t b = 0; b < f.sizes.batch; ++b) moment_of_sample(f, b);
    over_chunks(Step::kOutput, f);
    return 0;
  });
}

template <class T>
int backward(const Backward<T>& g) {
  return guarded([&] {
    const int64_t batch = g.sizes.batch, heads = g.sizes.heads;
    over_chunks(Step::kGate, g);
    for (int64_t b = 0; b < batch; ++b) moment_gradient_of_sample(g, b);
    over_chunks(Step::kScores, g);
    for (int64_t b = 0; b < batch; ++b) energy_gradient_of_sample(g, b);
    sum_parts(g.head_parts, batch * g.sizes.chunks(), heads, g.grad_temperature);
    over_chunks(Step::kTokens, g);
    return 0;
  });
}

}  // namespace
}  // namespace rifflemix

// An absent mask or gradient is null; strides are those of batch, head and token.
#define RIFFLEMIX_TOKEN_STATISTICS(name, T)                                                        \
  RIFFLEMIX_EXPORT int rifflemix_token_statistics_forward_##name(                                  \
      const rifflemix::Sizes* sizes, int64_t normalize, const T* w, const int64_t* w_strides,      \
      const rifflemix::Acc<T>* temperature, const uint8_t* mask, rifflemix::Acc<T>* membership,    \
      rifflemix::Acc<T>* energy, rifflemix::Acc<T>* moment, rifflemix::Acc<T>* count,              \
      rifflemix::Acc<T>* feature_parts, rifflemix::Acc<T>* head_parts, T* y,                       \
      const int64_t* y_strides) {                                                                  \
    return rifflemix::forward<T>(                                                                  \
                          {{*sizes, normalize != 0, {w, w_strides}, temperature, mask, membership, \
                            energy, moment, count, feature_parts, head_parts},                     \
                           {y, y_strides}});                                                       \
  }                                                                                                \
  RIFFLEMIX_EXPORT int rifflemix_token_statistics_backward_##name(                                 \
      const rifflemix::Sizes* sizes, int64_t normalize, const T* w, const int64_t* w_strides,      \
      const rifflemix::Acc<T>* temperature, const uint8_t* mask, rifflemix::Acc<T>* membership,    \
      rifflemix::Acc<T>* energy, rifflemix::Acc<T>* moment, rifflemix::Acc<T>* count,              \
      rifflemix::Acc<T>* feature_parts, rifflemix::Acc<T>* head_parts, const T* grad_y,            \
      const int64_t* grad_y_strides, const rifflemix::Acc<T>* grad_membership, T* grad_w,          \
      const int64_t* grad_w_strides, rifflemix::Acc<T>* grad_temperature,                          \
      rifflemix::Acc<T>* grad_scores, rifflemix::Acc<T>* grad_sums,                                \
      rifflemix::Acc<T>* grad_counts, rifflemix::Acc<T>* grad_energy) {                            \
    return rifflemix::backward<T>(                                                                 \
                           {{*sizes, normalize != 0, {w, w_strides}, temperature, mask,            \
                             membership, energy, moment, count, feature_parts, head_parts},        \
                            {grad_y, grad_y_strides}, grad_membership, {grad_w, grad_w_strides},   \
                            grad_temperature, grad_scores, grad_sums, grad_counts, grad_energy});  \
  }
RIFFLEMIX_TOKEN_STATISTICS(float32, float)
RIFFLEMIX_TOKEN_STATISTICS(float64, double)
RIFFLEMIX_TOKEN_STATISTICS(bfloat16, rifflemix::Bfloat16)
RIFFLEMIX_TOKEN_STATISTICS(float16, rifflemix::Float16)
