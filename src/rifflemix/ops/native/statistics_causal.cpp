// Causal token statistics. A sum over the tokens so far is the sum of all earlier chunks plus a sum
// within the token's chunk. Each step processes the chunks in any order. Between steps, the sums of
// the chunks are accumulated to sums before (or, for gradients, after) each chunk.
//
// Notation, for a token n and feature d of head h, with sums over the tokens up to n:
//   q = w^2, energy = sum q, s = sum_d q / max(energy, floor) + D bias, Pi = softmax_h(T s)
//   count = sum Pi + offset, mass = sum Pi q
//   gate = 1 / (1 + mass / count) = count / (count + mass), y = -w Pi gate

#include "statistics.h"

namespace rifflemix {
namespace {

// Arguments of the forward and the backward pass. T is (heads), the mask (batch, length) or null,
// Pi (batch, length, heads).
template <class T>
struct Problem {
  using A = Acc<T>;
  Sizes sizes;
  View<const T> w;
  const A* temperature;
  View<const A> bias;  // (batch, heads, length), or null data
  const uint8_t* mask;
  A* membership;
  // Sums before each chunk: (batch, chunks, heads, width); count is (batch, chunks, heads).
  A *energy, *mass, *count;
};

// Sums before the first token (`given`) and after the last token (`found`): (batch, heads,
// features); count is (batch, heads). For gradients, `given` is after the last token and `found`
// before the first. Absent sums are null. The sums are double, because streaming adds one token at
// a time, and adding 1 to a float of 2^24 does not change it.
struct Ends {
  const double *given_energy, *given_mass, *given_count;
  double *found_energy, *found_mass, *found_count;
};

template <class T>
struct Forward : Problem<T> {
  View<T> y;
  Ends ends;
};

template <class T>
struct Backward : Problem<T> {
  using A = Acc<T>;
  Ends ends;
  View<const T> grad_y;
  const A* grad_membership;  // (batch, length, heads) or null
  View<T> grad_w;
  A* grad_scores;  // (batch, length, heads): gradient of s; intermediate: sum_d grad_y w gate
  A* grad_temperature;
  // Scratch: gradients of the sums after each chunk, with the layouts of the sums before.
  A *grad_energy, *grad_mass, *grad_count;
  A* grad_counts;        // (batch, length, heads): gradient of the count at each token
  A* temperature_parts;  // (batch, chunks, heads)
  A* partial;            // (batch, length, heads, features): grad_w without the later energy
};

// Running sums within a chunk.
template <class A>
struct Within {
  Buffer<A> energy, mass, count;

  explicit Within(const Sizes& sizes) : energy(sizes.row()), mass(sizes.row()), count(sizes.heads) {}
};

template <class T>
RIFFLEMIX_INLINE Acc<T> bias_at(const Problem<T>& p, int64_t b, int64_t n, int64_t h) {
  if (p.bias.data == nullptr) return 0;
  return Acc<T>(p.sizes.features) * p.bias.at(b, n)[h * p.bias.head];
}

// Computes Pi of the chunk's tokens.
template <class T>
RIFFLEMIX_INLINE void find_membership(const Forward<T>& f, const Chunk& chunk) {
  using A = Acc<T>;
  const Sizes& sizes = f.sizes;
  const A* before = f.energy + chunk.task * sizes.row();
  Within<A> within(sizes);
  for (int64_t n = chunk.first; n < chunk.last; ++n) {
    if (chunk.padded(n)) continue;
    A* logits = f.membership + chunk.token(n) * sizes.heads;
    const T* token = f.w.at(chunk.sample, n);
    for (int64_t h = 0; h < sizes.heads; ++h, token += f.w.head) {
      Vector<A> score{};
      for_vectors<A>(sizes, h, [&](int64_t d, int64_t i, int64_t rest) RIFFLEMIX_BODY {
        const Vector<A> x = load(token + d, rest);
        const Vector<A> sum = load(&within.energy[i]) + x * x;
        store(&within.energy[i], sum);
        score += x * x / at_least<A>(load(before + i) + sum, kEnergyFloor);
      });
      logits[h] = f.temperature[h] * (sum_lanes<A>(score) + bias_at(f, chunk.sample, n, h));
    }
  }
  softmax_over_heads(chunk, sizes.heads, f.membership + chunk.token(chunk.first) * sizes.heads);
}

template <class T>
RIFFLEMIX_INLINE void write_output(const Forward<T>& f, const Chunk& chunk) {
  using A = Acc<T>;
  const Sizes& sizes = f.sizes;
  const A* mass_before = f.mass + chunk.task * sizes.row();
  const A* count_before = f.count + chunk.task * sizes.heads;
  Within<A> within(sizes);
  for (int64_t n = chunk.first; n < chunk.last; ++n) {
    if (chunk.padded(n)) {
      zero_token(sizes, f.y, chunk.sample, n);
      continue;
    }
    const A* membership = f.membership + chunk.token(n) * sizes.heads;
    const T* token = f.w.at(chunk.sample, n);
    T* out = f.y.at(chunk.sample, n);
    for (int64_t h = 0; h < sizes.heads; ++h, token += f.w.head, out += f.y.head) {
      const A pi = membership[h];
      within.count[h] += pi;
      const A count = count_before[h] + within.count[h] + A(kCountOffset);
      for_vectors<A>(sizes, h, [&](int64_t d, int64_t i, int64_t rest) RIFFLEMIX_BODY {
        const Vector<A> x = load(token + d, rest);
        const Vector<A> mass = load(&within.mass[i]) + x * x * pi;
        store(&within.mass[i], mass);
        store(out + d, -pi * x * (count / (count + (load(mass_before + i) + mass))), rest);
      });
    }
  }
}

// Writes sum_d grad_y w gate of the chunk's tokens to `grad_scores`. Also computes the gradients of
// the mass (summed over the chunk) and of the count (at each token) through y.
template <class T>
RIFFLEMIX_INLINE void find_gate_gradient(const Backward<T>& g, const Chunk& chunk) {
  using A = Acc<T>;
  const Sizes& sizes = g.sizes;
  const A* mass_before = g.mass + chunk.task * sizes.row();
  const A* count_before = g.count + chunk.task * sizes.heads;
  A* grad_mass = g.grad_mass + chunk.task * sizes.row();
  A* grad_count = g.grad_count + chunk.task * sizes.heads;
  std::fill(grad_mass, grad_mass + sizes.row(), A(0));
  std::fill(grad_count, grad_count + sizes.heads, A(0));
  Within<A> within(sizes);
  for (int64_t n = chunk.first; n < chunk.last; ++n) {
    if (chunk.padded(n)) continue;
    const int64_t at = chunk.token(n) * sizes.heads;
    const T* token = g.w.at(chunk.sample, n);
    const T* grad = g.grad_y.at(chunk.sample, n);
    for (int64_t h = 0; h < sizes.heads; ++h, token += g.w.head, grad += g.grad_y.head) {
      const A pi = g.membership[at + h];
      within.count[h] += pi;
      const A count = count_before[h] + within.count[h] + A(kCountOffset);
      Vector<A> along_gate{}, along_count{};
      for_vectors<A>(sizes, h, [&](int64_t d, int64_t i, int64_t rest) RIFFLEMIX_BODY {
        const Vector<A> x = load(token + d, rest);
        const Vector<A> sum = load(&within.mass[i]) + x * x * pi;
        store(&within.mass[i], sum);
        const Vector<A> mass = load(mass_before + i) + sum;
        const Vector<A> inverse = A(1) / (count + mass);
        const Vector<A> product = x * load(grad + d, rest) * inverse;
        along_gate += product;
        along_count += product * inverse * mass;
        store(grad_mass + i, load(grad_mass + i) + product * inverse * (pi * count));
      });
      g.grad_scores[at + h] = count * sum_lanes<A>(along_gate);
      g.grad_counts[at + h] = -pi * sum_lanes<A>(along_count);
      grad_count[h] += g.grad_counts[at + h];
    }
  }
}

// Memory of one thread for `find_score_gradient`. `energy`, `mass` and `count` are sums at each
// token of a chunk. For one token, `inverse` is 1 / max(energy, floor). `active` is the same but
// zero below the floor.
template <class A>
struct Recomputed {
  Buffer<A> energy, mass, count, inverse, active, gate, scores;

  explicit Recomputed(const Sizes& sizes)
      : energy(sizes.chunk * sizes.row()),
        mass(sizes.chunk * sizes.row()),
        count(sizes.chunk * sizes.heads),
        inverse(sizes.row()),
        active(sizes.row()),
        gate(sizes.row()),
        scores(sizes.heads) {}
};

// Recomputes the sums at each token of the chunk.
template <class T>
RIFFLEMIX_INLINE void recompute_sums(const Backward<T>& g, const Chunk& chunk,
                                     Recomputed<Acc<T>>& at) {
  using A = Acc<T>;
  const Sizes& sizes = g.sizes;
  const int64_t row = sizes.row();
  Within<A> within(sizes);
  for (int64_t n = chunk.first; n < chunk.last; ++n) {
    if (chunk.padded(n)) continue;
    const A* membership = g.membership + chunk.token(n) * sizes.heads;
    const T* token = g.w.at(chunk.sample, n);
    A* energies = &at.energy[(n - chunk.first) * row];
    A* masses = &at.mass[(n - chunk.first) * row];
    for (int64_t h = 0; h < sizes.heads; ++h, token += g.w.head) {
      within.count[h] += membership[h];
      at.count[(n - chunk.first) * sizes.heads + h] =
          g.count[chunk.task * sizes.heads + h] + within.count[h] + A(kCountOffset);
      for_vectors<A>(sizes, h, [&](int64_t d, int64_t i, int64_t rest) RIFFLEMIX_BODY {
        const Vector<A> x = load(token + d, rest);
        const Vector<A> energy = load(&within.energy[i]) + x * x;
        const Vector<A> mass = load(&within.mass[i]) + x * x * membership[h];
        store(&within.energy[i], energy);
        store(&within.mass[i], mass);
        store(energies + i, load(g.energy + chunk.task * row + i) + energy);
        store(masses + i, load(g.mass + chunk.task * row + i) + mass);
      });
    }
  }
}

// Writes the gradient of one token's Pi, before the softmax gradient, to `grad_scores`, and
// recomputes s. `within` contains the gradients of the sums over the chunk's later tokens; this
// token's gradients are added.
template <class T>
RIFFLEMIX_INLINE void membership_gradient_of_token(const Backward<T>& g, const Chunk& chunk,
                                                   int64_t n, Recomputed<Acc<T>>& at,
                                                   Within<Acc<T>>& within) {
  using A = Acc<T>;
  const Sizes& sizes = g.sizes;
  const int64_t row = sizes.row(), heads = sizes.heads, local = n - chunk.first;
  const A *energies = &at.energy[local * row], *masses = &at.mass[local * row];
  const A* mass_after = g.grad_mass + chunk.task * row;
  const A* count_after = g.grad_count + chunk.task * heads;
  const T* token = g.w.at(chunk.sample, n);
  const T* grad = g.grad_y.at(chunk.sample, n);
  for (int64_t h = 0; h < heads; ++h, token += g.w.head, grad += g.grad_y.head) {
    const int64_t to = chunk.token(n) * heads + h;
    const A pi = g.membership[to], count = at.count[local * heads + h];
    Vector<A> score{}, along_mass{};
    for_vectors<A>(sizes, h, [&](int64_t d, int64_t i, int64_t rest) RIFFLEMIX_BODY {
      const Vector<A> x = load(token + d, rest), energy = load(energies + i);
      const Vector<A> inverse = A(1) / at_least<A>(energy, kEnergyFloor);
      const Vector<A> inverse_sum = A(1) / (count + load(masses + i));
      const Vector<A> product = x * load(grad + d, rest) * inverse_sum;
      const Vector<A> mass = load(&within.mass[i]) + product * inverse_sum * (pi * count);
      store(&within.mass[i], mass);
      store(&at.inverse[i], inverse);
      store(&at.active[i], select<A>(energy < A(kEnergyFloor), Vector<A>{}, inverse));
      store(&at.gate[i], count * inverse_sum);
      score += x * x * inverse;
      along_mass += x * x * (load(mass_after + i) + mass);
    });
    within.count[h] += g.grad_counts[to];
    at.scores[h] = sum_lanes<A>(score) + bias_at(g, chunk.sample, n, h);
    g.grad_scores[to] =
        sum_lanes<A>(along_mass) + (count_after[h] + within.count[h]) - g.grad_scores[to];
    if (g.grad_membership != nullptr) g.grad_scores[to] += g.grad_membership[to];
  }
}

// Computes the gradient of one token, except for the part from the energy after this chunk.
template <class T>
RIFFLEMIX_INLINE void partial_gradient_of_token(const Backward<T>& g, const Chunk& chunk, int64_t n,
                                                const Recomputed<Acc<T>>& at,
                                                Within<Acc<T>>& within) {
  using A = Acc<T>;
  const Sizes& sizes = g.sizes;
  const A* mass_after = g.grad_mass + chunk.task * sizes.row();
  const int64_t index = chunk.token(n) * sizes.heads;
  const T* token = g.w.at(chunk.sample, n);
  const T* grad = g.grad_y.at(chunk.sample, n);
  A* out = g.partial + index * sizes.features;
  for (int64_t h = 0; h < sizes.heads; ++h) {
    const A pi = g.membership[index + h], score = g.grad_scores[index + h];
    for_vectors<A>(sizes, h, [&](int64_t d, int64_t i, int64_t rest) RIFFLEMIX_BODY {
      const Vector<A> x = load(token + d, rest), inverse = load(&at.inverse[i]);
      const Vector<A> energy =
          load(&within.energy[i]) - score * (x * x * inverse) * load(&at.active[i]);
      store(&within.energy[i], energy);
      const Vector<A> mass = load(mass_after + i) + load(&within.mass[i]);
      const Vector<A> along_q = score * inverse + pi * mass + energy;
      store(out + d, A(2) * x * along_q - pi * load(grad + d, rest) * load(&at.gate[i]), rest);
    });
    token += g.w.head, grad += g.grad_y.head, out += sizes.features;
  }
}

// Processes the chunk's tokens from the last to the first. Computes the gradient of s, the chunk's
// parts of the gradients of the energy before it and of T, and `partial`.
template <class T>
RIFFLEMIX_INLINE void find_score_gradient(const Backward<T>& g, const Chunk& chunk,
                                          Recomputed<Acc<T>>& at) {
  using A = Acc<T>;
  const Sizes& sizes = g.sizes;
  A* temperatures = g.temperature_parts + chunk.task * sizes.heads;
  std::fill(temperatures, temperatures + sizes.heads, A(0));
  recompute_sums(g, chunk, at);
  Within<A> within(sizes);
  for (int64_t n = chunk.last - 1; n >= chunk.first; --n) {
    const int64_t index = chunk.token(n) * sizes.heads;
    A* gradient = g.grad_scores + index;
    if (chunk.padded(n)) {
      std::fill(gradient, gradient + sizes.heads, A(0));
      continue;
    }
    membership_gradient_of_token(g, chunk, n, at, within);
    softmax_gradient(sizes.heads, g.membership + index, gradient);
    for (int64_t h = 0; h < sizes.heads; ++h) {
      temperatures[h] += gradient[h] * at.scores[h];
      gradient[h] *= g.temperature[h];
    }
    partial_gradient_of_token(g, chunk, n, at, within);
  }
  std::copy(within.energy.begin(), within.energy.end(), g.grad_energy + chunk.task * sizes.row());
}

template <class T>
RIFFLEMIX_INLINE void write_token_gradient(const Backward<T>& g, const Chunk& chunk) {
  using A = Acc<T>;
  const Sizes& sizes = g.sizes;
  const A* energy_after = g.grad_energy + chunk.task * sizes.row();
  for (int64_t n = chunk.first; n < chunk.last; ++n) {
    if (chunk.padded(n)) {
      zero_token(sizes, g.grad_w, chunk.sample, n);
      continue;
    }
    const T* token = g.w.at(chunk.sample, n);
    const A* partial = g.partial + chunk.token(n) * sizes.heads * sizes.features;
    T* out = g.grad_w.at(chunk.sample, n);
    for (int64_t h = 0; h < sizes.heads; ++h) {
      for_vectors<A>(sizes, h, [&](int64_t d, int64_t i, int64_t rest) RIFFLEMIX_BODY {
        const Vector<A> x = load(token + d, rest);
        store(out + d, load(partial + d, rest) + A(2) * x * load(energy_after + i), rest);
      });
      token += g.w.head, partial += sizes.features, out += g.grad_w.head;
    }
  }
}

enum class Step { kEnergy, kMembership, kOutput, kGate, kScores, kTokens };

template <class T>
RIFFLEMIX_INLINE void run(Step step, const Forward<T>& f, int64_t first, int64_t last) {
  const int64_t row = f.sizes.row(), heads = f.sizes.heads;
  for (int64_t task = first; task < last; ++task) {
    const Chunk chunk(f.sizes, f.mask, task);
    if (step == Step::kEnergy) sum_squares(f.sizes, chunk, f.w, f.energy + task * row);
    if (step == Step::kMembership) {
      find_membership(f, chunk);
      sum_weighted_squares(f.sizes, chunk, f.w, f.membership, f.mass + task * row,
                           f.count + task * heads);
    }
    if (step == Step::kOutput) write_output(f, chunk);
  }
}

template <class T>
RIFFLEMIX_INLINE void run(Step step, const Backward<T>& g, int64_t first, int64_t last) {
  if (step == Step::kScores) {
    Recomputed<Acc<T>> recomputed(g.sizes);
    for (int64_t task = first; task < last; ++task) {
      find_score_gradient(g, Chunk(g.sizes, g.mask, task), recomputed);
    }
    return;
  }
  for (int64_t task = first; task < last; ++task) {
    const Chunk chunk(g.sizes, g.mask, task);
    if (step == Step::kGate) find_gate_gradient(g, chunk);
    if (step == Step::kTokens) write_token_gradient(g, chunk);
  }
}

RIFFLEMIX_DISPATCH_STEPS(float)
RIFFLEMIX_DISPATCH_STEPS(double)
RIFFLEMIX_DISPATCH_STEPS(Bfloat16)
RIFFLEMIX_DISPATCH_STEPS(Float16)

// Accumulates the sums of chunks, (batch, chunks, heads, width), to sums of all chunks before each
// chunk (or after it, if backwards). The sums start from `given`; `found` is the total. Both are
// (batch, heads, features).
template <class A>
void accumulate_chunks(const Sizes& sizes, int64_t features, int64_t width, bool backwards,
                       A* parts, const double* given, double* found) {
  const int64_t row = sizes.heads * width, chunks = sizes.chunks();
  Buffer<double> sum(row);
  for (int64_t b = 0; b < sizes.batch; ++b, parts += chunks * row) {
    const int64_t end = b * sizes.heads * features;
    std::fill(sum.begin(), sum.end(), 0.0);
    for (int64_t h = 0; h < sizes.heads && given != nullptr; ++h) {
      const double* from = given + end + h * features;
      std::copy(from, from + features, &sum[h * width]);
    }
    for (int64_t k = 0; k < chunks; ++k) {
      A* part = parts + (backwards ? chunks - 1 - k : k) * row;
      for (int64_t i = 0; i < row; ++i) {
        const A own = part[i];
        part[i] = static_cast<A>(sum[i]);
        sum[i] += own;
      }
    }
    for (int64_t h = 0; h < sizes.heads; ++h) {
      const double* from = &sum[h * width];
      std::copy(from, from + features, found + end + h * features);
    }
  }
}

template <class T>
int forward(const Forward<T>& f) {
  return guarded([&] {
    const Sizes& sizes = f.sizes;
    const auto& ends = f.ends;
    over_chunks(Step::kEnergy, f);
    accumulate_chunks(sizes, sizes.features, sizes.width, false, f.energy, ends.given_energy,
                      ends.found_energy);
    over_chunks(Step::kMembership, f);
    accumulate_chunks(sizes, sizes.features, sizes.width, false, f.mass, ends.given_mass,
                      ends.found_mass);
    accumulate_chunks(sizes, 1, 1, false, f.count, ends.given_count, ends.found_count);
    over_chunks(Step::kOutput, f);
    return 0;
  });
}

template <class T>
int backward(const Backward<T>& g) {
  return guarded([&] {
    const Sizes& sizes = g.sizes;
    const auto& ends = g.ends;
    over_chunks(Step::kGate, g);
    accumulate_chunks(sizes, sizes.features, sizes.width, true, g.grad_mass, ends.given_mass,
                      ends.found_mass);
    accumulate_chunks(sizes, 1, 1, true, g.grad_count, ends.given_count, ends.found_count);
    over_chunks(Step::kScores, g);
    accumulate_chunks(sizes, sizes.features, sizes.width, true, g.grad_energy, ends.given_energy,
                      ends.found_energy);
    sum_parts(g.temperature_parts, sizes.batch * sizes.chunks(), sizes.heads, g.grad_temperature);
    over_chunks(Step::kTokens, g);
    return 0;
  });
}

}  // namespace
}  // namespace rifflemix

// Absent tensors are null; strides are those of batch, head and token.
#define RIFFLEMIX_CAUSAL_TOKEN_STATISTICS(name, T)                                                 \
  RIFFLEMIX_EXPORT int rifflemix_causal_token_statistics_forward_##name(                           \
      const rifflemix::Sizes* sizes, const T* w, const int64_t* w_strides,                         \
      const rifflemix::Acc<T>* temperature, const rifflemix::Acc<T>* bias,                         \
      const int64_t* bias_strides, const uint8_t* mask, rifflemix::Acc<T>* membership,             \
      rifflemix::Acc<T>* energy, rifflemix::Acc<T>* mass, rifflemix::Acc<T>* count,                \
      const rifflemix::Ends* ends, T* y, const int64_t* y_strides) {                               \
    return rifflemix::forward<T>(                                                                  \
                          {{*sizes, {w, w_strides}, temperature, {bias, bias_strides}, mask,       \
                            membership, energy, mass, count},                                      \
                           {y, y_strides},                                                         \
                           *ends});                                                                \
  }                                                                                                \
  RIFFLEMIX_EXPORT int rifflemix_causal_token_statistics_backward_##name(                          \
      const rifflemix::Sizes* sizes, const T* w, const int64_t* w_strides,                         \
      const rifflemix::Acc<T>* temperature, const rifflemix::Acc<T>* bias,                         \
      const int64_t* bias_strides, const uint8_t* mask, rifflemix::Acc<T>* membership,             \
      rifflemix::Acc<T>* energy, rifflemix::Acc<T>* mass, rifflemix::Acc<T>* count,                \
      const rifflemix::Ends* ends, const T* grad_y, const int64_t* grad_y_strides,                 \
      const rifflemix::Acc<T>* grad_membership, T* grad_w, const int64_t* grad_w_strides,          \
      rifflemix::Acc<T>* grad_scores,                                                              \
      rifflemix::Acc<T>* grad_temperature, rifflemix::Acc<T>* grad_energy,                         \
      rifflemix::Acc<T>* grad_mass, rifflemix::Acc<T>* grad_count,                                 \
      rifflemix::Acc<T>* grad_counts, rifflemix::Acc<T>* temperature_parts,                        \
      rifflemix::Acc<T>* partial) {                                                                \
    return rifflemix::backward<T>(                                                                 \
                           {{*sizes, {w, w_strides}, temperature, {bias, bias_strides}, mask,      \
                             membership, energy, mass, count},                                     \
                            *ends,                                                                 \
                            {grad_y, grad_y_strides},                                              \
                            grad_membership,                                                       \
                            {grad_w, grad_w_strides},                                              \
                            grad_scores,                                                           \
                            grad_temperature,                                                      \
                            grad_energy,                                                           \
                            grad_mass,                                                             \
                            grad_count,                                                            \
                            grad_counts,                                                           \
                            temperature_parts,                                                     \
                            partial});                                                             \
  }
RIFFLEMIX_CAUSAL_TOKEN_STATISTICS(float32, float)
RIFFLEMIX_CAUSAL_TOKEN_STATISTICS(float64, double)
RIFFLEMIX_CAUSAL_TOKEN_STATISTICS(bfloat16, rifflemix::Bfloat16)
RIFFLEMIX_CAUSAL_TOKEN_STATISTICS(float16, rifflemix::Float16)
