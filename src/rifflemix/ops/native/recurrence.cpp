// Linear recurrence over a matrix state S (keys, values), one token after another:
//
//   P = decay S, u = P^T b, S = P - a u^T + k v^T, y = S^T q
//
// The columns of the state do not depend on each other. A block of columns fits in the first cache,
// so the recurrence is limited by arithmetic, and it is exact for all decays. The forward pass saves
// the state before every chunk. The backward pass recomputes the states of a chunk from there.

#include "threads.h"
#include "vector.h"

namespace rifflemix {
namespace {

// Tokens between saved states; the same number is in recurrence/cpu.py. The backward pass keeps the
// states of kInner tokens, so that they stay in the second cache.
constexpr int64_t kChunk = 64, kInner = 16;

// kDelta: the removal has a = k, so k is multiplied by v - u.
enum Removal { kNone, kDelta, kErase };

// A tensor (batch, heads, tokens, features) with any strides. Only a decay may have a feature
// stride other than 1: 0 for one decay per head.
template <class A>
struct Rows {
  A* data;
  int64_t batch, head, token, feature;
  RIFFLEMIX_INLINE A* at(int64_t b, int64_t h, int64_t n) const {
    return data + b * batch + h * head + n * token;
  }
};

struct Sizes {
  int64_t sequences, heads, keys, values, packed, removal, threads;
};

template <class A>
struct Problem {
  Sizes sizes;
  // Sequence s has the tokens [bounds[s], bounds[s + 1]) of a packed row, otherwise [0, bounds[1]).
  // Its first chunk is chunks[s].
  const int64_t *bounds, *chunks;
  Rows<A> q, k, v, decay, a, b, y;  // absent tensors have null data; y is its gradient in `backward`
  A* saved;                         // (chunks, heads, keys, values) states before the chunks
  A *first, *last;                  // (sequences, heads, keys, values); the first may be null
};

template <class A>
struct Gradients {
  Rows<A> q, k, v, decay, a, b;  // no values yet
  A *first, *last;               // the first and the last may be null
};

// Vectors of a block of columns.
template <class A, int kBytes, int kVectors>
struct Block {
  using V = Vector<A, kBytes>;
  static constexpr int kOf = kBytes / sizeof(A), kWidth = kOf * kVectors;
  V of[kVectors];

  RIFFLEMIX_INLINE void clear() {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) of[i] = V{};
  }
  RIFFLEMIX_INLINE void read(const A* p) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) of[i] = load_as<V>(p + i * kOf);
  }
  RIFFLEMIX_INLINE void write(A* p) const {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) store_as(p + i * kOf, of[i]);
  }
  RIFFLEMIX_INLINE void read(const A* p, int64_t count) {
    if (count == kWidth) return read(p);
    alignas(64) A some[kWidth] = {};
    for (int64_t i = 0; i < count; ++i) some[i] = p[i];
    read(some);
  }
  RIFFLEMIX_INLINE void write(A* p, int64_t count) const {
    if (count == kWidth) return write(p);
    alignas(64) A some[kWidth];
    write(some);
    for (int64_t i = 0; i < count; ++i) p[i] = some[i];
  }
  RIFFLEMIX_INLINE void add(A factor, const Block& x) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) of[i] += factor * x.of[i];
  }
  RIFFLEMIX_INLINE void scale(A factor) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) of[i] *= factor;
  }
  // Products of the columns, added up to one vector.
  RIFFLEMIX_INLINE V products(const Block& x) const {
    V sum = of[0] * x.of[0];
#pragma GCC unroll 4
    for (int i = 1; i < kVectors; ++i) sum += of[i] * x.of[i];
    return sum;
  }
};

// Products of two states along the columns, for as many keys as a vector has lanes.
template <class A, class B>
struct Products {
  static constexpr int kBytes = B::kOf * sizeof(A);
  typename B::V rows[B::kOf];

  RIFFLEMIX_INLINE void set(int64_t key, const B& x, const B& y) { rows[key] = x.products(y); }
  // Adds a sum for each of the first `count` keys to `out`.
  RIFFLEMIX_INLINE void add_to(A* out, int64_t count) {
    for (int64_t i = count; i < B::kOf; ++i) rows[i] = typename B::V{};
    A sums[B::kOf];
    store_as(sums, sum_rows<A, kBytes>(rows));
    for (int64_t i = 0; i < count; ++i) out[i] += sums[i];
  }
  // Adds the sum over the first `count` keys to `out`.
  RIFFLEMIX_INLINE void add_all_to(A* out, int64_t count) {
    for (int64_t i = 1; i < count; ++i) rows[0] += rows[i];
    *out += sum_lanes<A, kBytes>(rows[0]);
  }
};

// A token of a head.
template <class A>
struct Token {
  const A *q, *k, *v, *decay, *a, *b;
  int64_t decay_step;

  RIFFLEMIX_INLINE Token(const Problem<A>& p, int64_t batch, int64_t head, int64_t at)
      : q(p.q.at(batch, head, at)),
        k(p.k.at(batch, head, at)),
        v(p.v.at(batch, head, at)),
        decay(p.decay.data == nullptr ? &kOne : p.decay.at(batch, head, at)),
        a(p.a.data == nullptr ? k : p.a.at(batch, head, at)),
        b(p.b.data == nullptr ? nullptr : p.b.at(batch, head, at)),
        decay_step(p.decay.data == nullptr ? 0 : p.decay.feature) {}

 private:
  static constexpr A kOne = 1;
};

// One sequence, head and block of columns.
template <class A>
struct Task {
  int64_t sequence, batch, head, column, count, start, end, chunk;

  RIFFLEMIX_INLINE Task(const Problem<A>& p, int64_t sequence_, int64_t head_, int64_t column_,
                        int64_t width)
      : sequence(sequence_),
        batch(p.sizes.packed ? 0 : sequence_),
        head(head_),
        column(column_),
        count(std::min(width, p.sizes.values - column_)),
        start(p.sizes.packed ? p.bounds[sequence_] : 0),
        end(p.bounds[p.sizes.packed ? sequence_ + 1 : 1]),
        chunk(p.chunks[sequence_]) {}

  // The block of a state in (states, heads, keys, values).
  RIFFLEMIX_INLINE A* state(const Problem<A>& p, A* states, int64_t index) const {
    return states + (index * p.sizes.heads + head) * p.sizes.keys * p.sizes.values + column;
  }
};

template <class B, class A>
RIFFLEMIX_INLINE void read_state(const Sizes& sizes, const A* from, int64_t count, A* to) {
  for (int64_t d = 0; d < sizes.keys; ++d) {
    B row;
    row.read(from + d * sizes.values, count);
    row.write(to + d * B::kWidth);
  }
}

template <class B, class A>
RIFFLEMIX_INLINE void write_state(const Sizes& sizes, const A* from, int64_t count, A* to) {
  for (int64_t d = 0; d < sizes.keys; ++d) {
    B row;
    row.read(from + d * B::kWidth);
    row.write(to + d * sizes.values, count);
  }
}

// Writes the state after a token to `to`, which may be `from`. Also computes the removed values u
// and, if kRead, the output y.
template <Removal kRemoval, bool kRead, class B, class A>
RIFFLEMIX_INLINE void advance(int64_t keys, const Token<A>& token, const B& v, const A* from, A* to,
                              B& u, B& y) {
  u.clear();
  y.clear();
  B written = v;
  if constexpr (kRemoval != kNone) {
    for (int64_t d = 0; d < keys; ++d) {
      B s;
      s.read(from + d * B::kWidth);
      s.scale(token.decay[d * token.decay_step]);
      u.add(token.b[d], s);
      s.write(to + d * B::kWidth);
    }
    if constexpr (kRemoval == kDelta) written.add(A(-1), u);
    from = to;
  }
  for (int64_t d = 0; d < keys; ++d) {
    B s;
    s.read(from + d * B::kWidth);
    if constexpr (kRemoval == kNone) s.scale(token.decay[d * token.decay_step]);
    if constexpr (kRemoval == kErase) s.add(-token.a[d], u);
    s.add(token.k[d], written);
    if constexpr (kRead) y.add(token.q[d], s);
    s.write(to + d * B::kWidth);
  }
}

template <Removal kRemoval, class B, class A>
RIFFLEMIX_INLINE void forward_block(const Problem<A>& p, const Task<A>& task, A* state) {
  const Sizes& sizes = p.sizes;
  if (p.first == nullptr) {
    std::fill(state, state + sizes.keys * B::kWidth, A(0));
  } else {
    read_state<B>(sizes, task.state(p, p.first, task.sequence), task.count, state);
  }
  for (int64_t n = task.start; n < task.end; ++n) {
    const int64_t done = n - task.start;
    if (done % kChunk == 0) {
      A* saved = task.state(p, p.saved, task.chunk + done / kChunk);
      write_state<B>(sizes, state, task.count, saved);
    }
    const Token<A> token(p, task.batch, task.head, n);
    B v, u, y;
    v.read(token.v + task.column, task.count);
    advance<kRemoval, true>(sizes.keys, token, v, state, state, u, y);
    y.write(p.y.at(task.batch, task.head, n) + task.column, task.count);
  }
  write_state<B>(sizes, state, task.count, task.state(p, p.last, task.sequence));
}

// Memory of a backward pass: the gradient of the state, the states before every kInner tokens of a
// chunk, and the states and removed values of kInner tokens.
template <class A>
struct Memory {
  int64_t size, width;
  Buffer<A> grad, starts, states, removed;

  Memory(int64_t keys, int64_t width_)
      : size(keys * width_),
        width(width_),
        grad(size),
        starts(size * kChunk / kInner),
        states(size * (kInner + 1)),
        removed(width_ * kInner) {}
};

// Adds the gradients of a token, to zero in the first block of columns. `before` and `after` are the
// states around it. `grad` is the gradient of the state after the token and becomes that of the
// state before it.
template <Removal kRemoval, class B, class A>
RIFFLEMIX_INLINE void retreat(const Problem<A>& p, const Gradients<A>& g, const Task<A>& task,
                              int64_t n, const A* before, const A* after, const A* removed,
                              A* grad) {
  const Token<A> token(p, task.batch, task.head, n);
  A* grad_q = g.q.at(task.batch, task.head, n);
  A* grad_k = g.k.at(task.batch, task.head, n);
  A* grad_v = g.v.at(task.batch, task.head, n) + task.column;
  A* grad_decay = p.decay.data == nullptr ? nullptr : g.decay.at(task.batch, task.head, n);
  B v, u, y, along_k, along_u;
  v.read(token.v + task.column, task.count);
  y.read(p.y.at(task.batch, task.head, n) + task.column, task.count);
  along_k.clear();
  along_u.clear();
  B written = v;
  if constexpr (kRemoval != kNone) u.read(removed);
  if constexpr (kRemoval == kDelta) written.add(A(-1), u);
  A* grad_a = kRemoval == kErase ? g.a.at(task.batch, task.head, n) : nullptr;
  A* grad_b = kRemoval == kNone ? nullptr : g.b.at(task.batch, task.head, n);
  if (task.column == 0) {
    const int64_t keys = p.sizes.keys;
    for (A* row : {grad_q, grad_k, grad_a, grad_b}) {
      if (row != nullptr) std::fill(row, row + keys, A(0));
    }
    if (grad_decay != nullptr) {
      std::fill(grad_decay, grad_decay + (g.decay.feature == 0 ? 1 : keys), A(0));
    }
  }
  const int64_t keys = p.sizes.keys;
  const bool one_decay = grad_decay != nullptr && g.decay.feature == 0;
  Products<A, B> of_q, of_k, of_a, of_b, of_decay;
  for (int64_t first = 0; first < keys; first += B::kOf) {
    const int64_t some = std::min<int64_t>(B::kOf, keys - first);
    for (int64_t i = 0; i < some; ++i) {
      const int64_t d = first + i;
      B s, now;
      s.read(grad + d * B::kWidth);
      s.add(token.q[d], y);
      now.read(after + d * B::kWidth);
      of_q.set(i, now, y);
      of_k.set(i, s, written);
      along_k.add(token.k[d], s);
      if constexpr (kRemoval == kErase) {
        of_a.rows[i] = -s.products(u);
        along_u.add(-token.a[d], s);
      }
      if constexpr (kRemoval == kNone) {
        if (grad_decay != nullptr) {
          now.read(before + d * B::kWidth);
          of_decay.set(i, s, now);
          s.scale(token.decay[d * token.decay_step]);
        }
      }
      s.write(grad + d * B::kWidth);
    }
    of_q.add_to(grad_q + first, some);
    of_k.add_to(grad_k + first, some);
    if constexpr (kRemoval == kErase) of_a.add_to(grad_a + first, some);
    if constexpr (kRemoval == kNone) {
      if (one_decay) of_decay.add_all_to(grad_decay, some);
      else if (grad_decay != nullptr) of_decay.add_to(grad_decay + first, some);
    }
  }
  if constexpr (kRemoval == kDelta) along_u.add(A(-1), along_k);
  if constexpr (kRemoval != kNone) {
    for (int64_t first = 0; first < keys; first += B::kOf) {
      const int64_t some = std::min<int64_t>(B::kOf, keys - first);
      for (int64_t i = 0; i < some; ++i) {
        const int64_t d = first + i;
        const A decay = token.decay[d * token.decay_step];
        B s, then;
        s.read(grad + d * B::kWidth);
        s.add(token.b[d], along_u);
        then.read(before + d * B::kWidth);
        of_b.rows[i] = decay * then.products(along_u);
        if (grad_decay != nullptr) of_decay.set(i, s, then);
        s.scale(decay);
        s.write(grad + d * B::kWidth);
      }
      of_b.add_to(grad_b + first, some);
      if (one_decay) of_decay.add_all_to(grad_decay, some);
      else if (grad_decay != nullptr) of_decay.add_to(grad_decay + first, some);
    }
  }
  along_k.write(grad_v, task.count);
}

template <Removal kRemoval, class B, class A>
RIFFLEMIX_INLINE void backward_block(const Problem<A>& p, const Gradients<A>& g,
                                     const Task<A>& task, Memory<A>& memory) {
  const Sizes& sizes = p.sizes;
  const int64_t keys = sizes.keys, size = keys * B::kWidth;
  const auto move = [&](int64_t n, const A* from, A* to, A* removed) RIFFLEMIX_BODY {
    const Token<A> token(p, task.batch, task.head, n);
    B v, u, y;
    v.read(token.v + task.column, task.count);
    advance<kRemoval, false>(keys, token, v, from, to, u, y);
    if (removed != nullptr) u.write(removed);
  };
  A* grad = memory.grad.data();
  if (g.last == nullptr) {
    std::fill(grad, grad + size, A(0));
  } else {
    read_state<B>(sizes, task.state(p, g.last, task.sequence), task.count, grad);
  }
  const int64_t chunks = (task.end - task.start + kChunk - 1) / kChunk;
  for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
    const int64_t start = task.start + chunk * kChunk, end = std::min(start + kChunk, task.end);
    A* starts = memory.starts.data();
    read_state<B>(sizes, task.state(p, p.saved, task.chunk + chunk), task.count, starts);
    const int64_t pieces = (end - start + kInner - 1) / kInner;
    for (int64_t n = start; n < start + (pieces - 1) * kInner; ++n) {
      const int64_t done = n - start;
      A* state = starts + (done / kInner + 1) * size;
      move(n, done % kInner ? state : state - size, state, nullptr);
    }
    for (int64_t piece = pieces - 1; piece >= 0; --piece) {
      const int64_t from = start + piece * kInner, to = std::min(from + kInner, end);
      A *states = memory.states.data(), *removed = memory.removed.data();
      std::copy(starts + piece * size, starts + (piece + 1) * size, states);
      for (int64_t n = from; n < to; ++n) {
        A* state = states + (n - from) * size;
        move(n, state, state + size, removed + (n - from) * B::kWidth);
      }
      for (int64_t n = to - 1; n >= from; --n) {
        const A* before = states + (n - from) * size;
        retreat<kRemoval, B>(p, g, task, n, before, before + size,
                             removed + (n - from) * B::kWidth, grad);
      }
    }
  }
  if (g.first != nullptr) {
    write_state<B>(sizes, grad, task.count, task.state(p, g.first, task.sequence));
  }
}

// Columns of a block: kWide vectors, or one if fewer columns are left.
constexpr int kWide = 4;

#define RIFFLEMIX_RECURRENCE_BLOCKS(A, name, kVectors, kRemoval)                                \
  RIFFLEMIX_DISPATCH(void, forward_##name, (const Problem<A>& p, const Task<A>& task, A* state), \
                     (p, task, state), {                                                        \
                       forward_block<kRemoval, Block<A, kBytes, kVectors>>(p, task, state);      \
                     })                                                                         \
  RIFFLEMIX_DISPATCH(                                                                           \
      void, backward_##name,                                                                    \
      (const Problem<A>& p, const Gradients<A>& g, const Task<A>& task, Memory<A>& memory),     \
      (p, g, task, memory),                                                                     \
      { backward_block<kRemoval, Block<A, kBytes, kVectors>>(p, g, task, memory); })

#define RIFFLEMIX_RECURRENCE_OF(A)                                   \
  RIFFLEMIX_RECURRENCE_BLOCKS(A, none_wide_##A, kWide, kNone)        \
  RIFFLEMIX_RECURRENCE_BLOCKS(A, none_narrow_##A, 1, kNone)          \
  RIFFLEMIX_RECURRENCE_BLOCKS(A, delta_wide_##A, kWide, kDelta)      \
  RIFFLEMIX_RECURRENCE_BLOCKS(A, delta_narrow_##A, 1, kDelta)        \
  RIFFLEMIX_RECURRENCE_BLOCKS(A, erase_wide_##A, kWide, kErase)      \
  RIFFLEMIX_RECURRENCE_BLOCKS(A, erase_narrow_##A, 1, kErase)        \
  template <>                                                        \
  struct Blocks<A> {                                                 \
    static constexpr ForwardBlock<A> kForward[3][2] = {              \
        {forward_none_narrow_##A, forward_none_wide_##A},            \
        {forward_delta_narrow_##A, forward_delta_wide_##A},          \
        {forward_erase_narrow_##A, forward_erase_wide_##A}};         \
    static constexpr BackwardBlock<A> kBackward[3][2] = {            \
        {backward_none_narrow_##A, backward_none_wide_##A},          \
        {backward_delta_narrow_##A, backward_delta_wide_##A},        \
        {backward_erase_narrow_##A, backward_erase_wide_##A}};       \
  };

template <class A>
using ForwardBlock = void (*)(const Problem<A>&, const Task<A>&, A*);
template <class A>
using BackwardBlock = void (*)(const Problem<A>&, const Gradients<A>&, const Task<A>&, Memory<A>&);
template <class A>
struct Blocks;
RIFFLEMIX_RECURRENCE_OF(float)
RIFFLEMIX_RECURRENCE_OF(double)

// Bytes of the vectors that the blocks use.
int vector_bytes() { return level() == 4 ? 64 : kVectorBytes; }

// Columns of a narrow block.
template <class A>
int64_t narrow() {
  return vector_bytes() / sizeof(A);
}

// Calls body(column, is_wide) for all blocks of columns.
template <class A, class Body>
void over_blocks(int64_t values, const Body& body) {
  for (int64_t column = 0; column < values;) {
    const bool is_wide = values - column > (kWide - 1) * narrow<A>();
    body(column, is_wide);
    column += is_wide ? kWide * narrow<A>() : narrow<A>();
  }
}

template <class A>
int forward(const Problem<A>& p) {
  return guarded([&] {
    const Sizes& sizes = p.sizes;
    const int64_t width = kWide * narrow<A>();
    parallel_for(sizes.sequences * sizes.heads, sizes.threads, [&](int64_t from, int64_t to) {
      Buffer<A> state(sizes.keys * width);
      for (int64_t at = from; at < to; ++at) {
        over_blocks<A>(sizes.values, [&](int64_t column, bool is_wide) {
          const Task<A> task(p, at / sizes.heads, at % sizes.heads, column,
                             is_wide ? width : narrow<A>());
          Blocks<A>::kForward[sizes.removal][is_wide](p, task, state.data());
        });
      }
    });
    return 0;
  });
}

template <class A>
int backward(const Problem<A>& p, const Gradients<A>& g) {
  return guarded([&] {
    const Sizes& sizes = p.sizes;
    const int64_t width = kWide * narrow<A>();
    parallel_for(sizes.sequences * sizes.heads, sizes.threads, [&](int64_t from, int64_t to) {
      Memory<A> memory(sizes.keys, width);
      for (int64_t at = from; at < to; ++at) {
        over_blocks<A>(sizes.values, [&](int64_t column, bool is_wide) {
          const Task<A> task(p, at / sizes.heads, at % sizes.heads, column,
                             is_wide ? width : narrow<A>());
          Blocks<A>::kBackward[sizes.removal][is_wide](p, g, task, memory);
        });
      }
    });
    return 0;
  });
}

}  // namespace
}  // namespace rifflemix

// `rows` are the tensors of a Problem or of Gradients in order; absent pointers are null.
#define RIFFLEMIX_RECURRENCE(name, A)                                                             \
  RIFFLEMIX_EXPORT int rifflemix_linear_recurrence_forward_##name(                                \
      const rifflemix::Sizes* sizes, const int64_t* bounds, const int64_t* chunks,                \
      const rifflemix::Rows<A>* rows, A* saved, A* first, A* last) {                              \
    return rifflemix::forward<A>({*sizes, bounds, chunks, rows[0], rows[1], rows[2], rows[3],     \
                                  rows[4], rows[5], rows[6], saved, first, last});                \
  }                                                                                               \
  RIFFLEMIX_EXPORT int rifflemix_linear_recurrence_backward_##name(                               \
      const rifflemix::Sizes* sizes, const int64_t* bounds, const int64_t* chunks,                \
      const rifflemix::Rows<A>* rows, A* saved, A* first, A* last) {                              \
    return rifflemix::backward<A>(                                                                \
        {*sizes, bounds, chunks, rows[0], rows[1], rows[2], rows[3], rows[4], rows[5], rows[6],   \
         saved, nullptr, nullptr},                                                                \
        {rows[7], rows[8], rows[9], rows[10], rows[11], rows[12], first, last});                  \
  }
RIFFLEMIX_RECURRENCE(float32, float)
RIFFLEMIX_RECURRENCE(float64, double)
