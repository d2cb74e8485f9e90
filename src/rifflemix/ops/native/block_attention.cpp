// Attention from blocks of queries to local and sorted blocks of keys.
//
// Notation, for a block u of a slice (sample and head), source blocks v, sort rows r of block u:
//   sorted keys k'_r = sum_v S_rv k_v, sorted values v'_r = sum_v S_rv v_v
//   weights of query i of block u: w_j = softmax_j(s q k_j) over its visible keys j in k'_r and k_u
//   outputs y = sum_j w_j m_j v_j, where m_j = 1, or with dropout m_j = kept(e) / (1 - p) for
//   element e = (slice, u, j, i)
//   gradients: dv_j = sum_i w_j m_j dy, ds_j = w_j (m_j dp_j - sum_j w_j m_j dp_j) with dp_j =
//   sum_d dy v_j
//   gradients of the sort: dS_rv = sum k_v dk'_r + sum v_v dv'_r; S transposed maps dk'_r and dv'_r
//   to the gradients of k and v
//
// Only the sorted keys and values of some blocks, and the weights of some queries, are in memory.
// The weights have one row per key, so that sums over keys use whole vectors of queries.

#include <limits>

#include "kept.h"
#include "threads.h"
#include "tokens.h"

namespace rifflemix::blocks {

// `rows`: rows of the sort matrix, a multiple of the number of blocks. `block`: tokens in a block.
// `mixes_padding`: sorted blocks include the values at padding instead of zeros. `causal`: a query
// ignores later keys of its block.
struct Sizes {
  int64_t batch, heads, tokens, width, block, rows, mixes_padding, causal, threads;
};

// Masks, true = hidden; null if no key is hidden.
struct Hidden {
  const bool* sorted;   // (batch, heads, rows, block), sorted keys
  const bool* padding;  // (batch, tokens), local keys
};

template <class A>
struct Problem {
  Sizes sizes;
  Rows<A> rows;
  A scale;  // scale of the scores
  Hidden hidden;
  const Drop* drop;  // null without dropout
  A kept_scale;
  View q, k, v, sort;
  A* lse;  // (batch, heads, tokens)
  View y, grad_y;
  View grad_q, grad_k, grad_v, grad_sort;  // null in the forward pass
};

// Number of sort rows processed together, and of queries with weights in memory.
constexpr int64_t kRowsTogether = 64, kQueriesTogether = 64;
// Number of rows multiplied with one other row together: enough independent sums to hide latency.
constexpr int kRowsCompared = 8;

// Queries [first, first + count) of block u; `at` is the index of block u in its group.
struct Queries {
  int64_t u, at, first, count;
};

// Dropout mask: -1 for kept, 0 for dropped weights; keys are `row` apart; null without dropout.
struct Kept {
  const int16_t* weights;
  int64_t row;
};

// One packed slice, and scratch memory for some of its blocks. A thread reuses it for all slices.
template <int kBytes, class A>
struct Slice {
  const Problem<A>& p;
  const int64_t block, blocks, per_block;  // tokens in a block; blocks; sorted blocks per block
  const int64_t queries;                   // queries of a block with weights in memory
  const int64_t width, columns, sources;   // padded features, queries and sort matrix columns
  const int64_t step;                      // distance of blocks; padded to avoid shared cache sets
  const int64_t together;                  // blocks of queries in a group
  int64_t b = 0, h = 0;
  Buffer<A> keys, values, sort, sorted_keys, sorted_values;
  Buffer<A> packed_queries, queries_across, weights, out;
  Buffer<int16_t> keep, keep_row;

  RIFFLEMIX_INLINE explicit Slice(const Problem<A>& problem)
      : p(problem), block(p.sizes.block), blocks(p.sizes.tokens / block),
        per_block(p.sizes.rows / blocks), queries(some_queries(block)),
        width(whole_panels<A>(p.sizes.width)), columns(whole_panels<A>(queries)),
        sources(whole_panels<A>(blocks)),
        step(block * width + kPanel<A>),
        together(std::clamp<int64_t>(kRowsTogether / per_block, 1, blocks)), keys(blocks * step),
        values(blocks * step), sort(p.sizes.rows * sources),
        sorted_keys(together * per_block * step), sorted_values(together * per_block * step),
        packed_queries(queries * width), queries_across(columns * p.sizes.width),
        weights(keys_each() * columns), out(queries * width),
        keep(p.drop != nullptr ? keys_each() * columns + columns + 2 * kTile : 0),
        keep_row(columns + 2 * kTile) {}

  // Splits the queries of a block into equal shares.
  static RIFFLEMIX_INLINE int64_t some_queries(int64_t block) {
    const int64_t shares = (block + kQueriesTogether - 1) / kQueriesTogether;
    return (block + shares - 1) / shares;
  }

  // Number of keys of each query block.
  RIFFLEMIX_INLINE int64_t keys_each() const { return (per_block + 1) * block; }

  RIFFLEMIX_INLINE Tokens tokens(int64_t u) const { return {b, h, u * block, (u + 1) * block}; }

  RIFFLEMIX_INLINE Tokens tokens(const Queries& q) const {
    const int64_t first = q.u * block + q.first;
    return {b, h, first, first + q.count};
  }

  RIFFLEMIX_INLINE void take(int64_t slice) {
    b = slice / p.sizes.heads, h = slice % p.sizes.heads;
    for (int64_t u = 0; u < blocks; ++u) {
      p.rows.pack(p.k, tokens(u), p.sizes.width, width, A(1), &keys[u * step]);
      p.rows.pack(p.v, tokens(u), p.sizes.width, width, A(1), &values[u * step]);
    }
    p.rows.pack(p.sort, {b, h, 0, p.sizes.rows}, blocks, sources, A(1), sort.data());
    clear_padded(keys);
    clear_padded(values);
  }

  // Sets padded tokens to zero, unless `mixes_padding`.
  RIFFLEMIX_INLINE void clear_padded(Buffer<A>& tokens) const {
    if (p.hidden.padding == nullptr || p.sizes.mixes_padding) return;
    const bool* padding = p.hidden.padding + b * p.sizes.tokens;
    for (int64_t i = 0; i < p.sizes.tokens; ++i) {
      if (padding[i]) std::fill_n(&tokens[i / block * step + i % block * width], width, A(0));
    }
  }

  // Computes the sorted keys and values of query blocks [first, last).
  RIFFLEMIX_INLINE void sort_blocks(int64_t first, int64_t last) {
    const Matrix<const A> rows{&sort[first * per_block * sources], sources, 1};
    const int64_t count = (last - first) * per_block;
    multiply<kBytes>(count, blocks, block * width, rows, {keys.data(), kPanel<A>, step},
                     sorted_keys.data(), step, false);
    multiply<kBytes>(count, blocks, block * width, rows, {values.data(), kPanel<A>, step},
                     sorted_values.data(), step, false);
  }

  // Part j of a block's keys or values: sorted blocks, then the local block.
  RIFFLEMIX_INLINE A* part(Buffer<A>& own, Buffer<A>& sorted, const Queries& q, int64_t j) const {
    return j < per_block ? &sorted[(q.at * per_block + j) * step] : &own[q.u * step];
  }

  // to[key][query]: products of all keys (or values) of a block with queries (or gradients).
  RIFFLEMIX_INLINE void compare(Buffer<A>& own, Buffer<A>& sorted, const Queries& q,
                                const Buffer<A>& across, Buffer<A>& to) const {
    const int64_t inner = p.sizes.width;
    for (int64_t j = 0; j <= per_block; ++j) {
      multiply<kBytes>(block, inner, whole_panels<A>(q.count),
                       {part(own, sorted, q, j), width, 1},
                       {across.data(), inner * kPanel<A>, kPanel<A>}, &to[j * block * columns],
                       columns, false);
    }
  }

  RIFFLEMIX_INLINE void find_scores(const Queries& q) {
    p.rows.pack(p.q, tokens(q), p.sizes.width, width, p.scale, packed_queries.data());
    transpose_rows(packed_queries.data(), q.count, p.sizes.width, width, queries_across.data());
    compare(keys, sorted_keys, q, queries_across, weights);
    hide_scores(q);
  }

  // Sets the scores of hidden keys to -inf.
  RIFFLEMIX_INLINE void hide_scores(const Queries& q) {
    constexpr A hidden = -std::numeric_limits<A>::infinity();
    const int64_t sorted = per_block * block;
    const bool* unseen = p.hidden.sorted;
    if (unseen != nullptr) unseen += ((b * p.sizes.heads + h) * blocks + q.u) * sorted;
    for (int64_t j = 0; j < sorted && unseen != nullptr; ++j) {
      if (unseen[j]) std::fill_n(&weights[j * columns], columns, hidden);
    }
    const bool* padding = p.hidden.padding;
    if (padding != nullptr) padding += b * p.sizes.tokens + q.u * block;
    for (int64_t j = 0; j < block; ++j) {
      const bool padded = padding != nullptr && padding[j];
      const int64_t later = p.sizes.causal ? std::clamp<int64_t>(j - q.first, 0, columns) : 0;
      std::fill_n(&weights[(sorted + j) * columns], padded ? columns : later, hidden);
    }
  }

  RIFFLEMIX_INLINE Kept find_kept_weights(const Queries& q) {
    if (p.drop == nullptr) return {nullptr, 0};
    const int64_t keys = keys_each();
    const int64_t first = ((b * p.sizes.heads + h) * blocks + q.u) * keys * block + q.first;
    if (q.count == block) return {find_kept(*p.drop, first, keys * block, keep.data()), block};
    for (int64_t j = 0; j < keys; ++j) {
      const int16_t* row = find_kept(*p.drop, first + j * block, q.count, keep_row.data());
      std::copy_n(row, q.count, &keep[j * columns]);
    }
    return {keep.data(), columns};
  }

  // to[query] = sum over all keys of from[key][query] times the key's (or value's) row.
  RIFFLEMIX_INLINE void gather(const Buffer<A>& from, Buffer<A>& own, Buffer<A>& sorted,
                               const Queries& q, Buffer<A>& to) const {
    for (int64_t j = 0; j <= per_block; ++j) {
      multiply<kBytes>(q.count, block, width, {&from[j * block * columns], 1, columns},
                       {part(own, sorted, q, j), kPanel<A>, width}, to.data(), width, j > 0);
    }
  }
};

// Applies dropout to numbers of key j: scales kept weights and zeros the others.
template <class A, class Values>
RIFFLEMIX_INLINE Values drop_some(Values values, const Kept& kept, int64_t j, int64_t i,
                                  A kept_scale) {
  if (kept.weights == nullptr) return values;
  return where<A, sizeof(Values)>(kept.weights + j * kept.row + i, values * kept_scale);
}

// Converts scores to exponentials after dropout. Writes each query's sum before dropout to `sums`,
// and the log-sum-exp of its scores to `lse` (0 without visible keys).
template <int kBytes, class A>
RIFFLEMIX_INLINE void find_weights(Slice<kBytes, A>& s, const Queries& q, A* sums, A* lse) {
  using Values = Vector<A, kBytes>;
  constexpr int64_t lanes = kBytes / sizeof(A);
  const Kept kept = s.find_kept_weights(q);
  const int64_t keys = s.keys_each();
  for (int64_t i = 0; i < q.count; i += lanes) {
    A* weights = &s.weights[i];
    Values most = spread<A, kBytes>(std::numeric_limits<A>::lowest()), sum{};
    for (int64_t j = 0; j < keys; ++j) {
      const Values x = load_as<Values>(weights + j * s.columns);
      most = select<A, kBytes>(x > most, x, most);
    }
    for (int64_t j = 0; j < keys; ++j) {
      A* at = weights + j * s.columns;
      const Values weight = exp_of_negative<A, kBytes>(load_as<Values>(at) - most);
      sum += weight;
      store_as(at, drop_some(weight, kept, j, i, s.p.kept_scale));
    }
    store_as(sums + i, sum);
    const int64_t some = std::min<int64_t>(lanes, q.count - i);
    for (int64_t lane = 0; lane < some; ++lane) {
      lse[i + lane] = sum[lane] == A(0) ? A(0) : most[lane] + std::log(sum[lane]);
    }
  }
}

template <int kBytes, class A>
RIFFLEMIX_INLINE void forward_queries(Slice<kBytes, A>& s, const Queries& q, A* sums, A* lse) {
  const Problem<A>& p = s.p;
  s.find_scores(q);
  find_weights(s, q, sums, lse);
  s.gather(s.weights, s.values, s.sorted_values, q, s.out);
  for (int64_t i = 0; i < q.count; ++i) {
    const A factor = sums[i] == A(0) ? A(0) : A(1) / sums[i];  // a query without visible keys
    A* row = &s.out[i * s.width];
    for (int64_t d = 0; d < s.width; d += kLanes<A>) store(row + d, load(row + d) * factor);
  }
  p.rows.write(s.out.data(), s.width, p.sizes.width, A(1), p.y, s.tokens(q));
}

template <int kBytes, class A>
RIFFLEMIX_INLINE void forward_slice(Slice<kBytes, A>& s, A* sums, int64_t index) {
  s.take(index);
  for (int64_t first = 0; first < s.blocks; first += s.together) {
    const int64_t last = std::min(s.blocks, first + s.together);
    s.sort_blocks(first, last);
    for (int64_t u = first; u < last; ++u) {
      A* lse = s.p.lse + index * s.p.sizes.tokens + u * s.block;
      for (int64_t i = 0; i < s.block; i += s.queries) {
        const Queries q{u, u - first, i, std::min(s.queries, s.block - i)};
        forward_queries(s, q, sums, lse + i);
      }
    }
  }
}

template <int kBytes, class A>
struct BackwardSlice : Slice<kBytes, A> {
  Buffer<A> grad_y, grad_y_across, grads, grad_q, grad_keys, grad_values;
  Buffer<A> grad_sorted_keys, grad_sorted_values, grad_sort;

  RIFFLEMIX_INLINE explicit BackwardSlice(const Problem<A>& p)
      : Slice<kBytes, A>(p), grad_y(this->queries * this->width),
        grad_y_across(this->columns * p.sizes.width), grads(this->weights.size()),
        grad_q(this->queries * this->width), grad_keys(this->keys.size()),
        grad_values(this->keys.size()), grad_sorted_keys(this->sorted_keys.size()),
        grad_sorted_values(this->sorted_keys.size()),
        grad_sort(this->together * this->per_block * this->sources) {}
};

// Converts scores to weights after dropout, and gradients of these weights to gradients of scores.
template <int kBytes, class A>
RIFFLEMIX_INLINE void find_gradients(BackwardSlice<kBytes, A>& s, const Queries& q, const A* lse) {
  using Values = Vector<A, kBytes>;
  constexpr int64_t lanes = kBytes / sizeof(A);
  const Kept kept = s.find_kept_weights(q);
  const int64_t keys = s.keys_each();
  for (int64_t i = 0; i < q.count; i += lanes) {
    A log_sums[lanes] = {};
    std::copy_n(lse + i, std::min<int64_t>(lanes, q.count - i), log_sums);
    const Values log_sum = load_as<Values>(log_sums);
    Values along{};
    for (int64_t j = 0; j < keys; ++j) {
      A *at = &s.weights[j * s.columns + i], *grad = &s.grads[j * s.columns + i];
      const Values weight = exp_of_negative<A, kBytes>(load_as<Values>(at) - log_sum);
      const Values value = drop_some(load_as<Values>(grad), kept, j, i, s.p.kept_scale);
      store_as(at, weight);
      store_as(grad, value);
      along += weight * value;
    }
    for (int64_t j = 0; j < keys; ++j) {
      A *at = &s.weights[j * s.columns + i], *grad = &s.grads[j * s.columns + i];
      const Values weight = load_as<Values>(at);
      store_as(at, drop_some(weight, kept, j, i, s.p.kept_scale));
      store_as(grad, weight * (load_as<Values>(grad) - along));
    }
  }
}

// Computes the gradients of some queries, and adds their part to the gradients of sorted and local
// keys and values.
template <int kBytes, class A>
RIFFLEMIX_INLINE void backward_queries(BackwardSlice<kBytes, A>& s, const Queries& q,
                                       const A* lse) {
  const Problem<A>& p = s.p;
  const int64_t width = s.width, columns = s.columns;
  s.find_scores(q);
  p.rows.pack(p.grad_y, s.tokens(q), p.sizes.width, width, A(1), s.grad_y.data());
  transpose_rows(s.grad_y.data(), q.count, p.sizes.width, width, s.grad_y_across.data());
  s.compare(s.values, s.sorted_values, q, s.grad_y_across, s.grads);
  find_gradients(s, q, lse);
  for (int64_t j = 0; j <= s.per_block; ++j) {
    const int64_t first = j * s.block * columns;
    const bool add = j == s.per_block || q.first > 0;  // sorted: new for the first queries
    multiply<kBytes>(s.block, q.count, width, {&s.weights[first], columns, 1},
                     {s.grad_y.data(), kPanel<A>, width},
                     s.part(s.grad_values, s.grad_sorted_values, q, j), width, add);
    multiply<kBytes>(s.block, q.count, width, {&s.grads[first], columns, 1},
                     {s.packed_queries.data(), kPanel<A>, width},
                     s.part(s.grad_keys, s.grad_sorted_keys, q, j), width, add);
  }
  s.gather(s.grads, s.keys, s.sorted_keys, q, s.grad_q);
  p.rows.write(s.grad_q.data(), width, p.sizes.width, p.scale, p.grad_q, s.tokens(q));
}

// c[i][j] (+)= the dot product of row i of `a` with row j of `b`; rows have `inner` numbers in
// whole vectors.
template <int kRows, class A>
RIFFLEMIX_INLINE void compare_rows(const A* a, const A* b, int64_t count, int64_t step,
                                   int64_t inner, A* c, int64_t c_row, bool add) {
  for (int64_t j = 0; j < count; ++j, b += step) {
    Vector<A> sums[kRows] = {};
    for (int64_t t = 0; t < inner; t += kLanes<A>) {
      const Vector<A> other = load(b + t);
      for (int i = 0; i < kRows; ++i) sums[i] += load(a + i * step + t) * other;
    }
    for (int i = 0; i < kRows; ++i) {
      c[i * c_row + j] = sum_lanes<A>(sums[i]) + (add ? c[i * c_row + j] : A(0));
    }
  }
}

// The same for `count` blocks of gradients and all sources: the gradient of the sort matrix.
template <int kBytes, class A>
RIFFLEMIX_INLINE void compare_blocks(BackwardSlice<kBytes, A>& s, const A* grads, const A* sources,
                                     int64_t count, bool add) {
  const int64_t inner = s.block * s.width;
  int64_t i = 0;
  for (; i + kRowsCompared <= count; i += kRowsCompared) {
    compare_rows<kRowsCompared, A>(grads + i * s.step, sources, s.blocks, s.step, inner,
                                   &s.grad_sort[i * s.sources], s.sources, add);
  }
  for (; i < count; ++i) {
    compare_rows<1, A>(grads + i * s.step, sources, s.blocks, s.step, inner,
                       &s.grad_sort[i * s.sources], s.sources, add);
  }
}

// Propagates the gradients of sorted blocks to the sort matrix and to the source blocks.
template <int kBytes, class A>
RIFFLEMIX_INLINE void backward_sort(BackwardSlice<kBytes, A>& s, int64_t first, int64_t last) {
  const Problem<A>& p = s.p;
  const int64_t count = (last - first) * s.per_block, inner = s.block * s.width;
  compare_blocks(s, s.grad_sorted_keys.data(), s.keys.data(), count, false);
  compare_blocks(s, s.grad_sorted_values.data(), s.values.data(), count, true);
  p.rows.write(s.grad_sort.data(), s.sources, s.blocks, A(1), p.grad_sort,
               {s.b, s.h, first * s.per_block, last * s.per_block});
  const Matrix<const A> across{&s.sort[first * s.per_block * s.sources], 1, s.sources};
  multiply<kBytes>(s.blocks, count, inner, across, {s.grad_sorted_keys.data(), kPanel<A>, s.step},
                   s.grad_keys.data(), s.step, true);
  multiply<kBytes>(s.blocks, count, inner, across, {s.grad_sorted_values.data(), kPanel<A>, s.step},
                   s.grad_values.data(), s.step, true);
}

template <int kBytes, class A>
RIFFLEMIX_INLINE void backward_slice(BackwardSlice<kBytes, A>& s, int64_t index) {
  const Problem<A>& p = s.p;
  s.take(index);
  std::fill(s.grad_keys.begin(), s.grad_keys.end(), A(0));
  std::fill(s.grad_values.begin(), s.grad_values.end(), A(0));
  for (int64_t first = 0; first < s.blocks; first += s.together) {
    const int64_t last = std::min(s.blocks, first + s.together);
    s.sort_blocks(first, last);
    for (int64_t u = first; u < last; ++u) {
      const A* lse = p.lse + index * p.sizes.tokens + u * s.block;
      for (int64_t i = 0; i < s.block; i += s.queries) {
        backward_queries(s, {u, u - first, i, std::min(s.queries, s.block - i)}, lse + i);
      }
    }
    backward_sort(s, first, last);
  }
  s.clear_padded(s.grad_keys);
  s.clear_padded(s.grad_values);
  for (int64_t u = 0; u < s.blocks; ++u) {
    p.rows.write(&s.grad_keys[u * s.step], s.width, p.sizes.width, A(1), p.grad_k, s.tokens(u));
    p.rows.write(&s.grad_values[u * s.step], s.width, p.sizes.width, A(1), p.grad_v, s.tokens(u));
  }
}

#define RIFFLEMIX_BLOCK_SLICES(A)                                                            \
  RIFFLEMIX_DISPATCH(void, forward_slices,                                                   \
                     (const Problem<A>& p, int64_t first, int64_t last), (p, first, last), { \
    Slice<kBytes, A> s(p);                                                                   \
    Buffer<A> sums(s.columns);                                                               \
    for (int64_t slice = first; slice < last; ++slice) forward_slice(s, sums.data(), slice); \
  })                                                                                         \
  RIFFLEMIX_DISPATCH(void, backward_slices,                                                  \
                     (const Problem<A>& p, int64_t first, int64_t last), (p, first, last), { \
    BackwardSlice<kBytes, A> s(p);                                                           \
    for (int64_t slice = first; slice < last; ++slice) backward_slice(s, slice);             \
  })
RIFFLEMIX_BLOCK_SLICES(float)
RIFFLEMIX_BLOCK_SLICES(double)

template <class A>
int run(const Problem<A>& p) {
  return guarded([&] {
    parallel_for(p.sizes.batch * p.sizes.heads, static_cast<int>(p.sizes.threads),
                 [&](int64_t first, int64_t last) {
                   p.grad_q.data == nullptr ? forward_slices(p, first, last)
                                            : backward_slices(p, first, last);
                 });
    return 0;
  });
}

// `tensors`: masks of sorted and local keys (may be null), lse, q, k, v, sort. Then y in the
// forward pass, or the gradients of y, q, k, v and sort in the backward pass.
// `strides`: three for each tensor from q on. `seed`: null without dropout.
template <class T>
int call(const Sizes& sizes, double scale, double kept_scale, const uint64_t* seed,
         uint32_t threshold, void* const* tensors, const int64_t* strides, bool backward) {
  const auto view = [&](int tensor) {
    const int64_t* s = strides + 3 * (tensor - 3);
    return View{tensors[tensor], s[0], s[1], s[2]};
  };
  Drop drop{{0, 0}, threshold};
  if (seed != nullptr) {
    drop.seed[0] = static_cast<uint32_t>(*seed);
    drop.seed[1] = static_cast<uint32_t>(*seed >> 32);
  }
  const Hidden hidden{static_cast<const bool*>(tensors[0]), static_cast<const bool*>(tensors[1])};
  using A = Acc<T>;
  Problem<A> p{sizes, rows_of<T>(), static_cast<A>(scale), hidden,
               seed == nullptr ? nullptr : &drop, static_cast<A>(kept_scale), view(3), view(4),
               view(5), view(6), static_cast<A*>(tensors[2]), {}, {}, {}, {}, {}, {}};
  (backward ? p.grad_y : p.y) = view(7);
  if (backward) p.grad_q = view(8), p.grad_k = view(9), p.grad_v = view(10), p.grad_sort = view(11);
  return run<A>(p);
}

}  // namespace rifflemix::blocks

#define RIFFLEMIX_BLOCK_ATTENTION(name, T)                                                         \
  RIFFLEMIX_EXPORT int rifflemix_block_attention_##name(                                           \
      const rifflemix::blocks::Sizes* sizes, double scale, double kept_scale,                      \
      const uint64_t* seed, uint32_t threshold, void* const* tensors, const int64_t* strides,      \
      int backward) {                                                                              \
    return rifflemix::blocks::call<T>(*sizes, scale, kept_scale, seed, threshold, tensors,         \
                                      strides, backward != 0);                                     \
  }
RIFFLEMIX_BLOCK_ATTENTION(float32, float)
RIFFLEMIX_BLOCK_ATTENTION(float64, double)
RIFFLEMIX_BLOCK_ATTENTION(bfloat16, rifflemix::Bfloat16)
RIFFLEMIX_BLOCK_ATTENTION(float16, rifflemix::Float16)
