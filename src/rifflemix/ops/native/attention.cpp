// Softmax attention with dropout of the weights. Only the weights of some queries are in memory.
//
// Notation, for query i and key j of a slice (sample and head) with element index e(i, j):
//   s = scale q k, w = exp(s - lse) = softmax_j(s), m = kept(e) / (1 - p), y = sum_j w m v
//   gradients: dv = sum_i w m dy, ds = w (m dp - sum_d dy y) with dp = sum_d dy v

#include <limits>

#include "kept.h"
#include "threads.h"
#include "tokens.h"

namespace rifflemix::attention {

struct Sizes {
  int64_t batch, heads, queries, keys, width, value_width, causal;
  int64_t is_padding;  // padding mask, same for all queries; queries and keys are the same tokens
  int64_t threads;
};

template <class A>
struct Problem {
  Sizes sizes;
  Rows<A> rows;
  A scale;  // scale of the scores
  Drop drop;
  A kept_scale;
  View q, k, v;
  const uint8_t* mask;  // 1 = the query may attend to the key; or null; 4 strides
  const int64_t* mask_strides;
  A* lse;  // (batch, heads, queries)
  View y, grad_y;
  View grad_q, grad_k, grad_v;  // null in the forward pass
};

// Number of queries processed together: their scratch memory is at most a few hundred KB.
inline int64_t queries_at_once(const Sizes& sizes) {
  const int64_t most = (int64_t{1} << 16) / std::max<int64_t>(sizes.keys, 1);
  return std::min(sizes.queries, std::clamp<int64_t>(most / 4 * 4, 16, 64));
}

// One packed slice, and scratch memory for some of its queries. A thread reuses it for all slices.
template <int kBytes, class A>
struct Slice {
  const Problem<A>& p;
  // Trailing padded queries and trailing keys that are hidden from all queries are skipped.
  int64_t b = 0, h = 0, keys, queries, width, value_width, columns, rows;
  Buffer<A> packed_keys, values, keys_across, packed_queries, scores, out;
  Buffer<int16_t> keep;
  const int16_t* kept = nullptr;

  RIFFLEMIX_INLINE explicit Slice(const Problem<A>& problem)
      : p(problem), keys(p.sizes.keys), queries(p.sizes.queries),
        width(whole_panels<A>(p.sizes.width)), value_width(whole_panels<A>(p.sizes.value_width)),
        columns(whole_panels<A>(keys)), rows(queries_at_once(p.sizes)), packed_keys(keys * width),
        values(keys * value_width), keys_across(columns * p.sizes.width),
        packed_queries(rows * width), scores(rows * columns), out(rows * value_width),
        keep(rows * keys + columns + 2 * kTile) {}

  RIFFLEMIX_INLINE const uint8_t* mask_of(int64_t i) const {
    return p.mask + b * p.mask_strides[0] + h * p.mask_strides[1] + i * p.mask_strides[2];
  }

  RIFFLEMIX_INLINE void take(int64_t slice) {
    b = slice / p.sizes.heads, h = slice % p.sizes.heads;
    keys = p.sizes.keys;
    if (p.mask != nullptr && p.mask_strides[2] == 0) {  // same mask for all queries
      const uint8_t* sees = mask_of(0);
      while (keys > 0 && !sees[(keys - 1) * p.mask_strides[3]]) --keys;
    }
    columns = whole_panels<A>(keys);
    queries = p.sizes.is_padding ? keys : p.sizes.queries;
    const Tokens all{b, h, 0, keys};
    p.rows.pack(p.k, all, p.sizes.width, width, A(1), packed_keys.data());
    p.rows.pack(p.v, all, p.sizes.value_width, value_width, A(1), values.data());
    transpose_rows(packed_keys.data(), keys, p.sizes.width, width, keys_across.data());
  }

  // Computes the scores of queries [first, last); hidden keys have -inf.
  RIFFLEMIX_INLINE void find_scores(int64_t first, int64_t last) {
    const int64_t inner = p.sizes.width;
    p.rows.pack(p.q, {b, h, first, last}, inner, width, p.scale, packed_queries.data());
    multiply<kBytes>(last - first, inner, columns, {packed_queries.data(), width, 1},
                     {keys_across.data(), inner * kPanel<A>, kPanel<A>}, scores.data(), columns,
                     false);
    constexpr A hidden = -std::numeric_limits<A>::infinity();
    for (int64_t i = first; i < last; ++i) {
      A* row = scores.data() + (i - first) * columns;
      const int64_t seen = p.sizes.causal ? std::min(keys, i + 1) : keys;
      std::fill(row + seen, row + columns, hidden);
      if (p.mask == nullptr) continue;
      const uint8_t* sees = mask_of(i);
      if (p.mask_strides[3] == 1) {
        for (int64_t j = 0; j < keys; ++j) row[j] = sees[j] ? row[j] : hidden;
      } else if (!*sees) {
        std::fill(row, row + keys, hidden);  // same mask for all keys
      }
    }
  }

  // Returns the dropout mask of query i of [first, last). Call it for the queries in order.
  RIFFLEMIX_INLINE const int16_t* find_kept_weights(int64_t first, int64_t last, int64_t i) {
    const int64_t apart = p.sizes.keys;
    const int64_t start = ((b * p.sizes.heads + h) * p.sizes.queries + i) * apart;
    if (keys < apart) return find_kept(p.drop, start, keys, keep.data());
    if (i == first) kept = find_kept(p.drop, start, (last - first) * apart, keep.data());
    return kept + (i - first) * apart;
  }
};

// Sets the rows of padded queries to zero.
template <int kBytes, class A>
RIFFLEMIX_INLINE void clear_padded(const Slice<kBytes, A>& s, int64_t first, int64_t last, A* rows,
                                   int64_t width) {
  if (!s.p.sizes.is_padding) return;
  const uint8_t* valid = s.mask_of(0);
  for (int64_t i = first; i < last; ++i) {
    if (!valid[i * s.p.mask_strides[3]]) std::fill_n(rows + (i - first) * width, width, A(0));
  }
}

// Writes zeros for all skipped queries.
template <int kBytes, class A>
RIFFLEMIX_INLINE void write_zeros(const Slice<kBytes, A>& s, Buffer<A>& rows, int64_t padded,
                                  int64_t width, const View& x) {
  std::fill(rows.begin(), rows.end(), A(0));
  for (int64_t first = s.queries; first < s.p.sizes.queries; first += s.rows) {
    const int64_t last = std::min(s.p.sizes.queries, first + s.rows);
    s.p.rows.write(rows.data(), padded, width, A(1), x, {s.b, s.h, first, last});
  }
}

// Converts the scores of one query to weights after dropout; returns the scores' log-sum-exp.
template <int kBytes, class A>
RIFFLEMIX_INLINE A find_weights(A* row, int64_t columns, const int16_t* keep, A kept_scale) {
  using Values = Vector<A, kBytes>;
  constexpr int lanes = kBytes / sizeof(A);
  Values most = spread<A, kBytes>(-std::numeric_limits<A>::infinity());
  for (int64_t j = 0; j < columns; j += lanes) {
    const Values x = load_as<Values>(row + j);
    most = select<A, kBytes>(x > most, x, most);
  }
  A largest = most[0];
  for (int i = 1; i < lanes; ++i) largest = most[i] > largest ? most[i] : largest;
  if (largest == -std::numeric_limits<A>::infinity()) largest = A(0);
  Values sums{};
  for (int64_t j = 0; j < columns; j += lanes) {
    const Values weight = exp_of_negative<A, kBytes>(load_as<Values>(row + j) - largest);
    sums += weight;
    store_as(row + j, weight);
  }
  const A sum = sum_lanes<A, kBytes>(sums);
  const A factor = sum == A(0) ? A(0) : kept_scale / sum;  // a query without visible keys
  for (int64_t j = 0; j < columns; j += lanes) {
    const Values weight = load_as<Values>(row + j);
    store_as(row + j, weight * where<A, kBytes>(keep + j, spread<A, kBytes>(factor)));
  }
  return sum == A(0) ? A(0) : largest + std::log(sum);
}

template <int kBytes, class A>
RIFFLEMIX_INLINE void forward_slice(Slice<kBytes, A>& s, int64_t index) {
  const Problem<A>& p = s.p;
  s.take(index);
  A* lse = p.lse + index * p.sizes.queries;
  for (int64_t first = 0; first < s.queries; first += s.rows) {
    const int64_t last = std::min(s.queries, first + s.rows);
    s.find_scores(first, last);
    for (int64_t i = first; i < last; ++i) {
      lse[i] = find_weights<kBytes>(&s.scores[(i - first) * s.columns], s.columns,
                                    s.find_kept_weights(first, last, i), p.kept_scale);
    }
    multiply<kBytes>(last - first, s.keys, s.value_width, {s.scores.data(), s.columns, 1},
                     {s.values.data(), kPanel<A>, s.value_width}, s.out.data(), s.value_width,
                     false);
    clear_padded(s, first, last, s.out.data(), s.value_width);
    p.rows.write(s.out.data(), s.value_width, p.sizes.value_width, A(1), p.y,
                 {s.b, s.h, first, last});
  }
  std::fill(lse + s.queries, lse + p.sizes.queries, A(0));
  write_zeros(s, s.out, s.value_width, p.sizes.value_width, p.y);
}

// For one query, converts the scores to weights after dropout, and the gradient of these weights to
// the gradient of the scores.
template <int kBytes, class A>
RIFFLEMIX_INLINE void find_gradients(A* scores, A* grads, int64_t columns, const int16_t* keep,
                                     A kept_scale, A lse, A along) {
  using Values = Vector<A, kBytes>;
  for (int64_t j = 0; j < columns; j += kBytes / sizeof(A)) {
    const Values weight = exp_of_negative<A, kBytes>(load_as<Values>(scores + j) - lse);
    const Values kept = where<A, kBytes>(keep + j, spread<A, kBytes>(kept_scale));
    store_as(scores + j, weight * kept);
    store_as(grads + j, weight * (load_as<Values>(grads + j) * kept - along));
  }
}

template <int kBytes, class A>
struct BackwardSlice : Slice<kBytes, A> {
  Buffer<A> values_across, grads, grad_y, grad_q, grad_k, grad_v;

  RIFFLEMIX_INLINE explicit BackwardSlice(const Problem<A>& p)
      : Slice<kBytes, A>(p), values_across(this->columns * p.sizes.value_width),
        grads(this->rows * this->columns), grad_y(this->rows * this->value_width),
        grad_q(this->rows * this->width), grad_k(this->keys * this->width),
        grad_v(this->keys * this->value_width) {}
};

// Returns true if any of `count` numbers is not 0; `count` is a multiple of a vector.
template <class A>
RIFFLEMIX_INLINE bool any_of(const A* numbers, int64_t count) {
  typename VectorOf<A>::Integers found{};
  for (int64_t i = 0; i < count; i += kLanes<A>) found |= load(numbers + i) != A(0);
  for (int i = 0; i < kLanes<A>; ++i) {
    if (found[i]) return true;
  }
  return false;
}

// Writes the weights of queries [first, last) to `scores`, and the gradients of their scores to
// `grads`.
template <int kBytes, class A>
RIFFLEMIX_INLINE void find_score_gradients(BackwardSlice<kBytes, A>& s, const A* lse, int64_t first,
                                           int64_t last) {
  const Problem<A>& p = s.p;
  const int64_t inner = p.sizes.value_width, width = s.value_width;
  s.find_scores(first, last);
  p.rows.pack(p.y, {s.b, s.h, first, last}, inner, width, A(1), s.out.data());
  multiply<kBytes>(last - first, inner, s.columns, {s.grad_y.data(), width, 1},
                   {s.values_across.data(), inner * kPanel<A>, kPanel<A>}, s.grads.data(),
                   s.columns, false);
  for (int64_t i = first; i < last; ++i) {
    const int64_t row = i - first;
    Vector<A> along{};
    for (int64_t d = row * width; d < (row + 1) * width; d += kLanes<A>) {
      along += load(&s.grad_y[d]) * load(&s.out[d]);
    }
    find_gradients<kBytes>(&s.scores[row * s.columns], &s.grads[row * s.columns], s.columns,
                           s.find_kept_weights(first, last, i), p.kept_scale, lse[i],
                           sum_lanes<A>(along));
  }
}

template <int kBytes, class A>
RIFFLEMIX_INLINE void backward_slice(BackwardSlice<kBytes, A>& s, int64_t index) {
  const Problem<A>& p = s.p;
  const int64_t width = s.width, value_width = s.value_width;
  s.take(index);
  transpose_rows(s.values.data(), s.keys, p.sizes.value_width, value_width,
                 s.values_across.data());
  std::fill(s.grad_k.begin(), s.grad_k.end(), A(0));
  std::fill(s.grad_v.begin(), s.grad_v.end(), A(0));
  for (int64_t first = 0; first < s.queries; first += s.rows) {
    const int64_t last = std::min(s.queries, first + s.rows), rows = last - first;
    const Tokens tokens{s.b, s.h, first, last};
    p.rows.pack(p.grad_y, tokens, p.sizes.value_width, value_width, A(1), s.grad_y.data());
    clear_padded(s, first, last, s.grad_y.data(), value_width);
    if (any_of(s.grad_y.data(), rows * value_width)) {
      find_score_gradients(s, p.lse + index * p.sizes.queries, first, last);
      multiply<kBytes>(s.keys, rows, value_width, {s.scores.data(), 1, s.columns},
                       {s.grad_y.data(), kPanel<A>, value_width}, s.grad_v.data(), value_width,
                       true);
      multiply<kBytes>(s.keys, rows, width, {s.grads.data(), 1, s.columns},
                       {s.packed_queries.data(), kPanel<A>, width}, s.grad_k.data(), width, true);
      multiply<kBytes>(rows, s.keys, width, {s.grads.data(), s.columns, 1},
                       {s.packed_keys.data(), kPanel<A>, width}, s.grad_q.data(), width, false);
    } else {  // outputs of these queries have no gradient
      std::fill(s.grad_q.begin(), s.grad_q.end(), A(0));
    }
    p.rows.write(s.grad_q.data(), width, p.sizes.width, p.scale, p.grad_q, tokens);
  }
  write_zeros(s, s.grad_q, width, p.sizes.width, p.grad_q);
  const Tokens all{s.b, s.h, 0, p.sizes.keys};
  p.rows.write(s.grad_k.data(), width, p.sizes.width, A(1), p.grad_k, all);
  p.rows.write(s.grad_v.data(), value_width, p.sizes.value_width, A(1), p.grad_v, all);
}

#define RIFFLEMIX_ATTENTION_SLICES(A)                                                             \
  RIFFLEMIX_DISPATCH(void, forward_slices,                                                        \
                          (const Problem<A>& p, int64_t first, int64_t last), (p, first, last), { \
    Slice<kBytes, A> s(p);                                                                        \
    for (int64_t slice = first; slice < last; ++slice) forward_slice(s, slice);                   \
  })                                                                                              \
  RIFFLEMIX_DISPATCH(void, backward_slices,                                                       \
                          (const Problem<A>& p, int64_t first, int64_t last), (p, first, last), { \
    BackwardSlice<kBytes, A> s(p);                                                                \
    for (int64_t slice = first; slice < last; ++slice) backward_slice(s, slice);                  \
  })
RIFFLEMIX_ATTENTION_SLICES(float)
RIFFLEMIX_ATTENTION_SLICES(double)

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

// `tensors`: q, k, v, mask, lse, y, and the gradients of y, q, k and v (null in the forward pass).
// `strides`: three for each tensor except lse, four for the mask.
template <class T>
int call(const Sizes& sizes, double scale, double kept_scale, const uint64_t* seed,
         uint32_t threshold, void* const* tensors, const int64_t* strides) {
  const auto view = [&](int tensor, int at) {
    const int64_t* s = strides + at;
    return View{tensors[tensor], s[0], s[1], s[2]};
  };
  const Drop drop{{static_cast<uint32_t>(*seed), static_cast<uint32_t>(*seed >> 32)}, threshold};
  using A = Acc<T>;
  return run<A>({sizes, rows_of<T>(), static_cast<A>(scale), drop, static_cast<A>(kept_scale),
                 view(0, 0), view(1, 3), view(2, 6), static_cast<const uint8_t*>(tensors[3]),
                 strides + 9, static_cast<A*>(tensors[4]), view(5, 13), view(6, 16), view(7, 19),
                 view(8, 22), view(9, 25)});
}

}  // namespace rifflemix::attention

#define RIFFLEMIX_ATTENTION(name, T)                                                               \
  RIFFLEMIX_EXPORT int rifflemix_attention_##name(                                                 \
      const rifflemix::attention::Sizes* sizes, double scale, double kept_scale,                   \
      const uint64_t* seed, uint32_t threshold, void* const* tensors, const int64_t* strides) {    \
    return rifflemix::attention::call<T>(*sizes, scale, kept_scale, seed, threshold, tensors,      \
                                         strides);                                                 \
  }
RIFFLEMIX_ATTENTION(float32, float)
RIFFLEMIX_ATTENTION(float64, double)
RIFFLEMIX_ATTENTION(bfloat16, rifflemix::Bfloat16)
RIFFLEMIX_ATTENTION(float16, rifflemix::Float16)
