// Block-diagonal linear maps of features in butterfly order, and the gradient of their parameters.
//
// Rows are worked on in tiles that are transposed: a feature of all rows of a tile lies side by
// side, so that blocks of any width fill whole vectors, and their order costs nothing.

#include <type_traits>

#include "threads.h"
#include "tokens.h"
#include "transpose.h"

namespace rifflemix::block_linear {

struct Sizes {
  int64_t outer, inner;           // rows
  int64_t blocks, in, out;        // maps, and features of a block
  int64_t in_stride, out_stride;  // how far apart the features of a block are
  int64_t x_across, y_across;     // rows lie side by side, not features
  int64_t threads, element_bytes;
};

// Chunks of tiles that are summed apart and then in order: as many for any number of threads.
constexpr int64_t kChunks = 16;

// (outer, inner, features) as they lie in memory; the tokens of `view` are rows, or features where
// rows lie side by side.
struct Features {
  View view;
  bool across;
  int64_t count, element_bytes;

  View from_row(int64_t row) const {
    View moved = view;
    moved.data = static_cast<char*>(view.data) + row * element_bytes;
    return moved;
  }
};

// Rows [first, first + count) of one outer index, `rows` with those that are filled up with zeros.
struct Tile {
  int64_t b, first, count, rows;
};

template <class A>
struct Problem {
  Sizes sizes;
  Rows<A> io;
  Features x, y;  // y or its gradient
  const A* weight;
  const A* bias;
  A* grad_weight;  // null in the forward pass
  A* grad_bias;
  int64_t rows, tiles_each;  // of a tile, and tiles of an outer index

  Tile tile(int64_t index) const {
    const int64_t first = index % tiles_each * rows;
    const int64_t count = std::min(rows, sizes.inner - first);
    return {index / tiles_each, first, count, whole_panels<A>(count)};
  }
  int64_t tiles() const { return sizes.outer * tiles_each; }
};

// A square of as many numbers as a 32-byte vector has: to[j * to_row + i] = from(i)[j].
template <class A>
constexpr int64_t kSquare = permutation::kVectorBytes / sizeof(A);

template <class A, class From>
RIFFLEMIX_INLINE void transpose_square(const From& from, A* to, int64_t to_row) {
  using Bits = typename std::conditional<sizeof(A) == 4, int32_t, int64_t>::type;
  permutation::transpose<Bits>(
      [&](int64_t i) { return reinterpret_cast<const Bits*>(from(i)); },
      reinterpret_cast<Bits*>(to), to_row);
}

// Feature 0 of block k; feature i is i * stride further.
RIFFLEMIX_INLINE int64_t place(int64_t k, int64_t width, int64_t stride) {
  return k / stride * stride * width + k % stride;
}

// A tile's features, transposed, and room to transpose them in.
template <class A>
struct Columns {
  const Features& of;
  const Rows<A>& io;
  int64_t padded;
  std::vector<A> data, scratch;

  RIFFLEMIX_INLINE Columns(const Features& features, const Rows<A>& rows_io, int64_t rows)
      : of(features), io(rows_io), padded(whole_panels<A>(features.count)), data(padded * rows),
        scratch(features.across ? 0 : padded * rows) {}

  RIFFLEMIX_INLINE void read(const Tile& t) {
    if (of.across) {
      io.pack(of.from_row(t.first), {t.b, 0, 0, of.count}, t.count, t.rows, A(1), data.data());
      return;
    }
    io.pack(of.view, {t.b, 0, t.first, t.first + t.count}, of.count, padded, A(1),
            scratch.data());
    std::fill(&scratch[t.count * padded], &scratch[0] + t.rows * padded, A(0));
    swap(scratch.data(), padded, data.data(), t.rows, t.rows, of.count);
  }

  RIFFLEMIX_INLINE void write(const Tile& t) {
    if (of.across) {
      io.write(data.data(), t.rows, t.count, A(1), of.from_row(t.first), {t.b, 0, 0, of.count});
      return;
    }
    swap(data.data(), t.rows, scratch.data(), padded, of.count, t.rows);
    io.write(scratch.data(), padded, of.count, A(1), of.view,
             {t.b, 0, t.first, t.first + t.count});
  }

  // to[j][i] = from[i][j], in whole squares.
  static RIFFLEMIX_INLINE void swap(const A* from, int64_t from_row, A* to, int64_t to_row,
                                    int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i += kSquare<A>) {
      for (int64_t j = 0; j < columns; j += kSquare<A>) {
        transpose_square<A>([&](int64_t of) { return from + (i + of) * from_row + j; },
                            to + j * to_row + i, to_row);
      }
    }
  }
};

template <class A>
RIFFLEMIX_INLINE void map_tile(const Problem<A>& p, const Tile& t, const A* x, A* y) {
  const Sizes& s = p.sizes;
  for (int64_t k = 0; k < s.blocks; ++k) {
    A* to = y + place(k, s.out, s.out_stride) * t.rows;
    for (int64_t i = 0; i < s.out && p.bias != nullptr; ++i) {
      std::fill_n(to + i * s.out_stride * t.rows, t.rows, p.bias[k * s.out + i]);
    }
    multiply<A>(s.out, s.in, t.rows, {p.weight + k * s.in * s.out, 1, s.out},
                {x + place(k, s.in, s.in_stride) * t.rows, kPanel<A>, s.in_stride * t.rows}, to,
                s.out_stride * t.rows, p.bias != nullptr);
  }
}

// Sums over rows, of some tiles: of products of features, of gradients, for each block.
template <class A>
struct Sums {
  const Problem<A>& p;
  int64_t wide;  // features of a block that go out, in whole panels
  std::vector<A> weight, bias;

  explicit Sums(const Problem<A>& problem)
      : p(problem), wide(whole_panels<A>(problem.sizes.out)),
        weight(problem.sizes.blocks * problem.sizes.in * wide),
        bias(problem.sizes.blocks * wide) {}

  // `rows` and `products` have room for one block's.
  RIFFLEMIX_INLINE void add(const Tile& t, const A* x, const A* grad, A* rows, A* products) {
    const Sizes& s = p.sizes;
    for (int64_t k = 0; k < s.blocks; ++k) {
      collect(t, grad + place(k, s.out, s.out_stride) * t.rows, rows);
      multiply<A>(s.in, t.rows, wide,
                  {x + place(k, s.in, s.in_stride) * t.rows, s.in_stride * t.rows, 1},
                  {rows, kPanel<A>, wide}, products, wide, false);
      A* sums = &weight[k * s.in * wide];
      for (int64_t i = 0; i < s.in * wide; i += kLanes<A>) {
        store(sums + i, load(sums + i) + load(products + i));
      }
      for (int64_t i = 0; i < wide; i += kLanes<A>) {
        Vector<A> sum{};
        for (int64_t r = 0; r < t.rows; ++r) sum += load(rows + r * wide + i);
        store(&bias[k * wide + i], load(&bias[k * wide + i]) + sum);
      }
    }
  }

  // The gradients of a block by row: those of the features that it has, then anything finite.
  RIFFLEMIX_INLINE void collect(const Tile& t, const A* grad, A* rows) {
    const int64_t apart = p.sizes.out_stride * t.rows, last = p.sizes.out - 1;
    for (int64_t i = 0; i < wide; i += kSquare<A>) {
      for (int64_t r = 0; r < t.rows; r += kSquare<A>) {
        transpose_square<A>([&](int64_t of) { return grad + std::min(i + of, last) * apart + r; },
                            rows + r * wide + i, wide);
      }
    }
  }
};

#define RIFFLEMIX_BLOCK_LINEAR_TILES(A)                                                            \
  RIFFLEMIX_DISPATCH(void, map_tiles, (const Problem<A>& p, int64_t first, int64_t last),          \
                     (p, first, last), {                                                           \
    Columns<A> x(p.x, p.io, p.rows), y(p.y, p.io, p.rows);                                         \
    for (int64_t tile = first; tile < last; ++tile) {                                              \
      const Tile t = p.tile(tile);                                                                 \
      x.read(t);                                                                                   \
      map_tile(p, t, x.data.data(), y.data.data());                                                \
      y.write(t);                                                                                  \
    }                                                                                              \
  })                                                                                               \
  RIFFLEMIX_DISPATCH(void, sum_tiles, (Sums<A>& sums, int64_t first, int64_t last),                \
                     (sums, first, last), {                                                        \
    const Problem<A>& p = sums.p;                                                                  \
    Columns<A> x(p.x, p.io, p.rows), grad(p.y, p.io, p.rows);                                      \
    std::vector<A> rows(p.rows * sums.wide), products(p.sizes.in * sums.wide);                     \
    for (int64_t tile = first; tile < last; ++tile) {                                              \
      const Tile t = p.tile(tile);                                                                 \
      x.read(t);                                                                                   \
      grad.read(t);                                                                                \
      sums.add(t, x.data.data(), grad.data.data(), rows.data(), products.data());                  \
    }                                                                                              \
  })
RIFFLEMIX_BLOCK_LINEAR_TILES(float)
RIFFLEMIX_BLOCK_LINEAR_TILES(double)

// The chunks' sums in order, without what fills up the panels.
template <class A>
void add_chunks(const Problem<A>& p, const std::vector<Sums<A>>& chunks) {
  const int64_t out = p.sizes.out, wide = chunks[0].wide;
  const auto add = [&](A* total, int64_t rows, std::vector<A> Sums<A>::*part) {
    if (total == nullptr) return;
    for (int64_t at = 0; at < rows * out; ++at) {
      total[at] = A(0);
      for (const Sums<A>& sums : chunks) total[at] += (sums.*part)[at / out * wide + at % out];
    }
  };
  add(p.grad_weight, p.sizes.blocks * p.sizes.in, &Sums<A>::weight);
  add(p.grad_bias, p.sizes.blocks, &Sums<A>::bias);
}

template <class A>
int run(const Problem<A>& p) {
  const int64_t tiles = p.tiles();
  const int threads = static_cast<int>(p.sizes.threads);
  return guarded([&] {
    if (p.grad_weight == nullptr) {
      parallel_for(tiles, threads,
                   [&](int64_t first, int64_t last) { map_tiles(p, first, last); });
      return 0;
    }
    std::vector<Sums<A>> chunks(std::min(kChunks, std::max<int64_t>(tiles, 1)), Sums<A>(p));
    const int64_t count = static_cast<int64_t>(chunks.size());
    parallel_for(count, threads, [&](int64_t first, int64_t last) {
      for (int64_t c = first; c < last; ++c) {
        sum_tiles(chunks[c], c * tiles / count, (c + 1) * tiles / count);
      }
    });
    add_chunks(p, chunks);
    return 0;
  });
}

// `tensors`: x, weight, bias or null, y; or its gradient, and the gradients of weight and bias.
// `strides`: for x and y that of outer, and of rows, or of features where rows lie side by side.
template <class T>
int call(Sizes s, void* const* tensors, const int64_t* strides) {
  using A = Acc<T>;
  if (strides[0] == s.inner * strides[1] && strides[2] == s.inner * strides[3] && !s.x_across &&
      !s.y_across) {  // rows are equally far apart
    s.inner *= s.outer;
    s.outer = 1;
  }
  const Features x{{tensors[0], strides[0], 0, strides[1]}, s.x_across != 0, s.blocks * s.in,
                   s.element_bytes};
  const Features y{{tensors[3], strides[2], 0, strides[3]}, s.y_across != 0, s.blocks * s.out,
                   s.element_bytes};
  // A tile of either side stays within some 32 KB.
  const int64_t most = (int64_t{1} << 13) / std::max(x.count, y.count) / 16 * 16;
  const int64_t rows = std::clamp<int64_t>(most, 16, 64);
  return run<A>({s, rows_of<T>(), x, y, static_cast<const A*>(tensors[1]),
                 static_cast<const A*>(tensors[2]), static_cast<A*>(tensors[4]),
                 static_cast<A*>(tensors[5]), rows, (s.inner + rows - 1) / rows});
}

}  // namespace rifflemix::block_linear

#define RIFFLEMIX_BLOCK_LINEAR(name, T)                                                      \
  RIFFLEMIX_EXPORT int rifflemix_block_linear_##name(                                        \
      const rifflemix::block_linear::Sizes* sizes, void* const* tensors,                     \
      const int64_t* strides) {                                                              \
    return rifflemix::block_linear::call<T>(*sizes, tensors, strides);                       \
  }
RIFFLEMIX_BLOCK_LINEAR(float32, float)
RIFFLEMIX_BLOCK_LINEAR(float64, double)
RIFFLEMIX_BLOCK_LINEAR(bfloat16, rifflemix::Bfloat16)
RIFFLEMIX_BLOCK_LINEAR(float16, rifflemix::Float16)
