// Sequence of block-diagonal linear layers in butterfly order with activations, and its gradients.
//
// Rows are processed in transposed tiles: the values of a feature are contiguous over the rows of a
// tile. Blocks of any width therefore fill whole vectors, and the order of features has no cost. A
// tile stays in the CPU cache from the first layer to the last. The backward pass recomputes the
// intermediate activations.

#include <type_traits>

#include "activations.h"
#include "threads.h"
#include "tokens.h"
#include "transpose.h"

namespace rifflemix::block_maps {

struct Sizes {
  int64_t outer, inner, maps;  // outer x inner rows; number of layers
  int64_t x_across, y_across;  // 1 = rows are contiguous, not features
  int64_t threads, element_bytes;
};

struct Map {
  int64_t blocks, in, out;        // blocks; input and output features of a block
  int64_t in_stride, out_stride;  // distance of the features of a block
  int64_t has_bias;
  int64_t activation;  // activation after the layer

  int64_t weights() const { return blocks * in * out; }
  int64_t parameters() const { return weights() + has_bias * blocks * out; }
};

// Number of chunks of tiles. Each chunk has a separate sum, and the sums are added in order. The
// number of chunks does not depend on the number of threads.
constexpr int64_t kChunks = 16;
constexpr int64_t kTilesTogether = 64;  // tiles summed in float before the sum is added in double

// (outer, inner, features) in memory; the tokens of `view` are rows, or features if rows are
// contiguous.
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

// Rows [first, first + count) of one outer index, padded with zeros to `rows`.
struct Tile {
  int64_t b, first, count, rows;
};

template <class A>
struct Problem {
  Sizes sizes;
  const Map* maps;
  Rows<A> io;
  Features x, y;  // y or its gradient
  Features grad_x;
  const A* parameters;  // weight, then bias of each layer
  A* grad_parameters;   // null if not needed, like the data of grad_x
  int64_t rows, tiles_each;  // rows of a tile; tiles per outer index
  int64_t widest;            // maximum features between layers

  Tile tile(int64_t index) const {
    const int64_t first = index % tiles_each * rows;
    const int64_t count = std::min(rows, sizes.inner - first);
    return {index / tiles_each, first, count, whole_panels<A>(count)};
  }
  int64_t tiles() const { return sizes.outer * tiles_each; }
};

// Side of a square with one 32-byte vector per row; transposed: to[j * to_row + i] = from(i)[j].
template <class A>
constexpr int64_t kSquare = permutation::kVectorBytes / sizeof(A);

template <class A, class From>
RIFFLEMIX_INLINE void transpose_square(const From& from, A* to, int64_t to_row) {
  using Bits = typename std::conditional<sizeof(A) == 4, int32_t, int64_t>::type;
  permutation::transpose<Bits>(
      [&](int64_t i) { return reinterpret_cast<const Bits*>(from(i)); },
      reinterpret_cast<Bits*>(to), to_row);
}

// Index of feature 0 of block k; feature i is at distance i * stride.
RIFFLEMIX_INLINE int64_t place(int64_t k, int64_t width, int64_t stride) {
  return k / stride * stride * width + k % stride;
}

// The transposed features of a tile, and scratch memory for the transpose.
template <class A>
struct Columns {
  const Features& of;
  const Rows<A>& io;
  int64_t padded;
  Buffer<A> data, scratch;

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

// Applies a layer to a tile, without its activation.
template <int kBytes, class A>
RIFFLEMIX_INLINE void map_tile(const Map& m, const A* weight, const Tile& t, const A* x, A* y) {
  const A* bias = weight + m.weights();
  for (int64_t k = 0; k < m.blocks; ++k) {
    A* to = y + place(k, m.out, m.out_stride) * t.rows;
    for (int64_t i = 0; i < m.out && m.has_bias; ++i) {
      std::fill_n(to + i * m.out_stride * t.rows, t.rows, bias[k * m.out + i]);
    }
    multiply_whole<kBytes, A>(m.out, m.in, t.rows, {weight + k * m.in * m.out, 1, m.out},
                              x + place(k, m.in, m.in_stride) * t.rows, m.in_stride * t.rows, to,
                              m.out_stride * t.rows, m.has_bias != 0);
  }
}

// Computes the gradient of a layer's input from the gradient of its output.
template <int kBytes, class A>
RIFFLEMIX_INLINE void map_back(const Map& m, const A* weight, const Tile& t, const A* grad_y,
                               A* grad_x) {
  for (int64_t k = 0; k < m.blocks; ++k) {
    multiply_whole<kBytes, A>(m.in, m.out, t.rows, {weight + k * m.in * m.out, m.out, 1},
                              grad_y + place(k, m.out, m.out_stride) * t.rows,
                              m.out_stride * t.rows,
                              grad_x + place(k, m.in, m.in_stride) * t.rows, m.in_stride * t.rows,
                              false);
  }
}

template <class A>
constexpr int64_t whole_squares(int64_t count) {
  return (count + kSquare<A> - 1) / kSquare<A> * kSquare<A>;
}

// Sums over the rows of some tiles, in the order of the parameters but with rows of whole squares.
// `sums` contains the last tiles, `earlier` all others in double, because a float sum of all tiles
// would lose digits.
template <class A>
struct Sums {
  const Problem<A>& p;
  Buffer<A> sums;
  Buffer<double> earlier;

  explicit Sums(const Problem<A>& problem) : p(problem) {
    int64_t count = 0;
    for (int64_t l = 0; l < p.sizes.maps; ++l) count += size(p.maps[l]);
    sums.resize(count);
  }

  // Call it after tile number `tile` of these sums.
  void set_aside(int64_t tile) {
    if (tile % kTilesTogether != kTilesTogether - 1) return;
    earlier.resize(sums.size());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      earlier[i] += sums[i];
      sums[i] = A(0);
    }
  }

  static int64_t size(const Map& m) { return m.blocks * (m.in + 1) * whole_squares<A>(m.out); }

  // Adds a tile to `into`, the sums of this layer. `rows` and `products` are scratch memory for one
  // block.
  template <int kBytes>
  static RIFFLEMIX_INLINE void add(const Map& m, const Tile& t, const A* x, const A* grad, A* rows,
                                   A* products, A* into) {
    const int64_t wide = whole_squares<A>(m.out);
    A* bias = into + m.blocks * m.in * wide;
    for (int64_t k = 0; k < m.blocks; ++k) {
      collect(m, t, grad + place(k, m.out, m.out_stride) * t.rows, rows);
      const Matrix<const A> values{x + place(k, m.in, m.in_stride) * t.rows, m.in_stride * t.rows,
                                   1};
      multiply_whole<kBytes, A>(m.in, t.rows, wide, values, rows, wide, products, wide, false);
      for (int64_t j = 0; j < m.in * wide; j += kLanes<A>, into += kLanes<A>) {
        store(into, load(into) + load(products + j));
      }
      for (int64_t j = 0; j < wide; j += kLanes<A>, bias += kLanes<A>) {
        Vector<A> sum{};
        for (int64_t r = 0; r < t.rows; ++r) sum += load(rows + r * wide + j);
        store(bias, load(bias) + sum);
      }
    }
  }

  // Collects the gradients of a block by row: its features, then arbitrary finite numbers.
  static RIFFLEMIX_INLINE void collect(const Map& m, const Tile& t, const A* grad, A* rows) {
    const int64_t wide = whole_squares<A>(m.out), apart = m.out_stride * t.rows, last = m.out - 1;
    for (int64_t i = 0; i < wide; i += kSquare<A>) {
      for (int64_t r = 0; r < t.rows; r += kSquare<A>) {
        transpose_square<A>([&](int64_t of) { return grad + std::min(i + of, last) * apart + r; },
                            rows + r * wide + i, wide);
      }
    }
  }
};

template <int kBytes, class A>
RIFFLEMIX_INLINE void map_tiles_of(const Problem<A>& p, int64_t first, int64_t last) {
  Columns<A> x(p.x, p.io, p.rows), y(p.y, p.io, p.rows);
  Buffer<A> between[2] = {Buffer<A>(p.widest * p.rows), Buffer<A>(p.widest * p.rows)};
  for (int64_t tile = first; tile < last; ++tile) {
    const Tile t = p.tile(tile);
    x.read(t);
    const A* from = x.data.data();
    const A* parameters = p.parameters;
    for (int64_t l = 0; l < p.sizes.maps; ++l) {
      const Map& m = p.maps[l];
      A* to = l + 1 < p.sizes.maps ? between[l % 2].data() : y.data.data();
      map_tile<kBytes>(m, parameters, t, from, to);
      activate<A, kBytes>(m.activation, m.blocks * m.out * t.rows, to, nullptr);
      from = to;
      parameters += m.parameters();
    }
    y.write(t);
  }
}

// Values of a tile for the gradients: input of each layer, and derivatives of its activation.
template <class A>
struct Trace {
  const Problem<A>& p;
  std::vector<A*> comes, slopes;
  Buffer<A> data;

  RIFFLEMIX_INLINE Trace(const Problem<A>& problem, A* x)
      : p(problem), comes(p.sizes.maps + 1), slopes(p.sizes.maps) {
    const int64_t room = std::max(p.widest, p.y.count) * p.rows;
    data.resize(2 * p.sizes.maps * room);
    comes[0] = x;
    for (int64_t l = 0; l < p.sizes.maps; ++l) {
      comes[l + 1] = &data[2 * l * room];
      slopes[l] = comes[l + 1] + room;
    }
  }

  template <int kBytes>
  RIFFLEMIX_INLINE void follow(const Tile& t) {
    const A* parameters = p.parameters;
    for (int64_t l = 0; l < p.sizes.maps; ++l) {
      const Map& m = p.maps[l];
      if (l + 1 == p.sizes.maps && m.activation == kNone) return;
      map_tile<kBytes>(m, parameters, t, comes[l], comes[l + 1]);
      activate<A, kBytes>(m.activation, m.blocks * m.out * t.rows, comes[l + 1], slopes[l]);
      parameters += m.parameters();
    }
  }
};

// Scratch memory for gradients between layers, and for the weight gradient of one block.
template <class A>
struct Room {
  Buffer<A> between[2], rows, products;

  explicit Room(const Problem<A>& p) {
    for (Buffer<A>& one : between) one.resize(p.widest * p.rows);
    for (const Map* m = p.maps; m < p.maps + p.sizes.maps; ++m) {
      const std::size_t wide = whole_squares<A>(m->out);
      rows.resize(std::max(rows.size(), wide * p.rows));
      products.resize(std::max(products.size(), wide * m->in));
    }
  }
};

// Computes gradients from the last layer to the first. `grad` is the gradient of a tile's y,
// `grad_x` the gradient of its x, or null.
template <int kBytes, class A>
RIFFLEMIX_INLINE void go_back(Sums<A>& sums, const Tile& t, const Trace<A>& trace, A* grad,
                              A* grad_x, Room<A>& room) {
  const Problem<A>& p = sums.p;
  const A* parameters = p.parameters;
  for (int64_t l = 0; l < p.sizes.maps; ++l) parameters += p.maps[l].parameters();
  A* into = sums.sums.data() + sums.sums.size();
  for (int64_t l = p.sizes.maps - 1; l >= 0; --l) {
    const Map& m = p.maps[l];
    parameters -= m.parameters();
    into -= Sums<A>::size(m);
    for (int64_t i = 0; i < m.blocks * m.out * t.rows && m.activation != kNone; i += kLanes<A>) {
      store(grad + i, load(grad + i) * load(trace.slopes[l] + i));
    }
    if (p.grad_parameters != nullptr) {
      Sums<A>::template add<kBytes>(m, t, trace.comes[l], grad, room.rows.data(),
                                    room.products.data(), into);
    }
    A* to = l > 0 ? room.between[l % 2].data() : grad_x;
    if (to != nullptr) map_back<kBytes>(m, parameters, t, grad, to);
    grad = to;
  }
}

template <int kBytes, class A>
RIFFLEMIX_INLINE void sum_tiles_of(Sums<A>& sums, int64_t first, int64_t last) {
  const Problem<A>& p = sums.p;
  const bool needs_x = p.grad_x.view.data != nullptr;
  Columns<A> x(p.x, p.io, p.rows), grad(p.y, p.io, p.rows), grad_x(p.grad_x, p.io, p.rows);
  Trace<A> trace(p, x.data.data());
  Room<A> room(p);
  for (int64_t tile = first; tile < last; ++tile) {
    const Tile t = p.tile(tile);
    x.read(t);
    trace.template follow<kBytes>(t);
    grad.read(t);
    go_back<kBytes>(sums, t, trace, grad.data.data(), needs_x ? grad_x.data.data() : nullptr,
                    room);
    sums.set_aside(tile - first);
    if (needs_x) grad_x.write(t);
  }
}

#define RIFFLEMIX_BLOCK_MAP_TILES(A)                                                       \
  RIFFLEMIX_DISPATCH(void, map_tiles, (const Problem<A>& p, int64_t first, int64_t last),  \
                     (p, first, last), { map_tiles_of<kBytes>(p, first, last); })          \
  RIFFLEMIX_DISPATCH(void, sum_tiles, (Sums<A>& sums, int64_t first, int64_t last),        \
                     (sums, first, last), { sum_tiles_of<kBytes>(sums, first, last); })
RIFFLEMIX_BLOCK_MAP_TILES(float)
RIFFLEMIX_BLOCK_MAP_TILES(double)

// Adds the sums of the chunks in order, without the padding of the squares.
template <class A>
void add_chunks(const Problem<A>& p, const std::vector<Sums<A>>& chunks) {
  A* total = p.grad_parameters;
  Buffer<double> sum;
  int64_t at = 0;
  for (int64_t l = 0; l < p.sizes.maps; ++l) {
    const Map& m = p.maps[l];
    const int64_t all = m.blocks * (m.in + 1), wanted = m.blocks * (m.in + m.has_bias);
    for (int64_t row = 0; row < all; ++row, at += whole_squares<A>(m.out)) {
      if (row >= wanted) continue;
      sum.assign(m.out, 0.0);
      for (const Sums<A>& chunk : chunks) {
        for (int64_t i = 0; i < m.out; ++i) sum[i] += chunk.sums[at + i];
        if (chunk.earlier.empty()) continue;
        for (int64_t i = 0; i < m.out; ++i) sum[i] += chunk.earlier[at + i];
      }
      for (int64_t i = 0; i < m.out; ++i) *total++ = static_cast<A>(sum[i]);
    }
  }
}

template <class A>
int run(const Problem<A>& p, bool backward) {
  const int64_t tiles = p.tiles();
  const int threads = static_cast<int>(p.sizes.threads);
  return guarded([&] {
    if (!backward) {
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
    if (p.grad_parameters != nullptr) add_chunks(p, chunks);
    return 0;
  });
}

// `tensors`: x, parameters and y in the forward pass. In the backward pass: x, parameters, and the
// gradients of y, x and the parameters; the last two may be null. `strides`: for x, y and the
// gradient of x, the stride of outer, then of rows (or of features if rows are contiguous).
template <class T>
int call(Sizes s, const Map* maps, void* const* tensors, const int64_t* strides, bool backward) {
  using A = Acc<T>;
  bool by_row = !s.x_across && !s.y_across;  // and rows have a constant stride
  for (int i = 0; i < 6; i += 2) by_row = by_row && strides[i] == s.inner * strides[i + 1];
  if (by_row) {
    s.inner *= s.outer;
    s.outer = 1;
  }
  const int64_t in = maps[0].blocks * maps[0].in;
  const int64_t out = maps[s.maps - 1].blocks * maps[s.maps - 1].out;
  int64_t widest = 0;
  for (int64_t l = 0; l + 1 < s.maps; ++l) widest = std::max(widest, maps[l].blocks * maps[l].out);
  const auto features = [&](int which, int64_t count, int64_t across) {
    return Features{{tensors[which == 2 ? 3 : 2 * which], strides[2 * which], 0,
                     strides[2 * which + 1]}, across != 0, count, s.element_bytes};
  };
  // A tile of inputs or outputs has at most about 32 KB.
  const int64_t most = (int64_t{1} << 13) / std::max({in, out, widest}) / 16 * 16;
  const int64_t rows = std::clamp<int64_t>(most, 16, 64);
  const Problem<A> p{s, maps, rows_of<T>(), features(0, in, s.x_across),
                     features(1, out, s.y_across), features(2, in, s.x_across),
                     static_cast<const A*>(tensors[1]), static_cast<A*>(tensors[4]), rows,
                     (s.inner + rows - 1) / rows, widest};
  return run<A>(p, backward);
}

}  // namespace rifflemix::block_maps

#define RIFFLEMIX_BLOCK_MAPS(name, T)                                                       \
  RIFFLEMIX_EXPORT int rifflemix_block_maps_##name(                                         \
      const rifflemix::block_maps::Sizes* sizes, const rifflemix::block_maps::Map* maps,    \
      void* const* tensors, const int64_t* strides, int64_t backward) {                     \
    return rifflemix::block_maps::call<T>(*sizes, maps, tensors, strides, backward != 0);   \
  }
RIFFLEMIX_BLOCK_MAPS(float32, float)
RIFFLEMIX_BLOCK_MAPS(float64, double)
RIFFLEMIX_BLOCK_MAPS(bfloat16, rifflemix::Bfloat16)
RIFFLEMIX_BLOCK_MAPS(float16, rifflemix::Float16)
