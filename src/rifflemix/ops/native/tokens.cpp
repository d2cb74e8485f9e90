// Conversion of tokens of each type to rows of numbers, built once for all kernels.

#include "tokens.h"

namespace rifflemix {
namespace {

// Number of tokens to prefetch: the tokens of a head are far apart, so hardware does not prefetch.
constexpr int64_t kTokensAhead = 40;

// Writes tokens as rows of `padded` numbers, with zeros after the features.
template <class T>
RIFFLEMIX_INLINE void pack_rows(const View& x, const Tokens& tokens, int64_t width, int64_t padded,
                                Acc<T> factor, Acc<T>* rows) {
  using A = Acc<T>;
  for (int64_t n = tokens.first; n < tokens.last; ++n, rows += padded) {
    const T* token = x.at<T>(tokens.b, tokens.h, n);
    for (int64_t d = 0; d < width; d += 64 / sizeof(T)) {
      __builtin_prefetch(token + kTokensAhead * x.token + d);
    }
    for (int64_t d = 0; d < padded; d += kLanes<A>) {
      const int64_t rest = std::max<int64_t>(width - d, 0);
      store(rows + d, rest > 0 ? load(token + d, rest) * factor : Vector<A>{});
    }
  }
}

template <class T>
RIFFLEMIX_INLINE void write_rows(const Acc<T>* rows, int64_t padded, int64_t width, Acc<T> factor,
                                 const View& x, const Tokens& tokens) {
  using A = Acc<T>;
  for (int64_t n = tokens.first; n < tokens.last; ++n, rows += padded) {
    T* token = x.at<T>(tokens.b, tokens.h, n);
    for (int64_t d = 0; d < width; d += kLanes<A>) {
      store(token + d, load(rows + d) * factor, width - d);
    }
  }
}

#define RIFFLEMIX_ROWS(T)                                                                      \
  RIFFLEMIX_DISPATCH(void, pack,                                                               \
                     (const View& x, const Tokens& tokens, int64_t width, int64_t padded,      \
                      Acc<T> factor, Acc<T>* rows, T),                                         \
                     (x, tokens, width, padded, factor, rows, T{}),                            \
                     { pack_rows<T>(x, tokens, width, padded, factor, rows); })                \
  RIFFLEMIX_DISPATCH(void, write,                                                              \
                     (const Acc<T>* rows, int64_t padded, int64_t width, Acc<T> factor,        \
                      const View& x, const Tokens& tokens, T),                                 \
                     (rows, padded, width, factor, x, tokens, T{}),                            \
                     { write_rows<T>(rows, padded, width, factor, x, tokens); })
RIFFLEMIX_ROWS(float)
RIFFLEMIX_ROWS(double)
RIFFLEMIX_ROWS(Bfloat16)
RIFFLEMIX_ROWS(Float16)

}  // namespace

template <class T>
Rows<Acc<T>> rows_of() {
  using A = Acc<T>;
  return {[](const View& x, const Tokens& tokens, int64_t width, int64_t padded, A factor,
             A* rows) { pack(x, tokens, width, padded, factor, rows, T{}); },
          [](const A* rows, int64_t padded, int64_t width, A factor, const View& x,
             const Tokens& tokens) { write(rows, padded, width, factor, x, tokens, T{}); }};
}

template Rows<float> rows_of<float>();
template Rows<double> rows_of<double>();
template Rows<float> rows_of<Bfloat16>();
template Rows<float> rows_of<Float16>();

}  // namespace rifflemix
