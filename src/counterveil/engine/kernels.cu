// Kernels of the engine `cuda`. Each has a NumPy twin of the same name in `twins.py`, which says what it computes.
//
// Rows lie on the card as words of 32 bits: word g * stride + r has codes g * PER_WORD, ... of row r. A thread reads the
// words of four rows at a time, 16 bytes, and neighbouring threads read neighbouring bytes. The number of rows is filled
// up to whole tiles, so no kernel checks for the end of the rows.
//
// Settings: CODE_BITS (8 or 16), VALUE_BITS (32 where q <= 2^32, else 64), SUM_BITS (32 where a row's sum fits 32 bits, or
// may wrap there since q is a power of two; else 64), and BITS, the planes of `slice`.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#if CODE_BITS == 8
typedef u8 code_t;
#define PER_WORD 4
#else
typedef u16 code_t;
#define PER_WORD 2
#endif

#if VALUE_BITS == 32
typedef u32 value_t;
#else
typedef u64 value_t;
#endif

#if SUM_BITS == 32
typedef u32 sum_t;
#define QUADS 4  // times four rows: what a thread of `table` has in its registers
#else
typedef u64 sum_t;
#define QUADS 2
#endif

#define HELD 2     // times four rows: what a warp of `together` has
#define TILE 1024  // threads of `table`, and of `together`
#define BLOCK 256  // threads of all other kernels

__device__ __forceinline__ u32 code(u32 word, int n) {
    return (word >> (CODE_BITS * n)) & ((1u << CODE_BITS) - 1);
}

// s mod q, for q <= 2^32 and m = floor((2^64 - 1) / q). The quotient is too small by at most 2.
__device__ __forceinline__ u64 reduced(u64 s, u64 q, u64 m) {
    u64 r = s - __umul64hi(s, m) * q;
    r = r >= q ? r - q : r;
    return r >= q ? r - q : r;
}

__device__ __forceinline__ u32 part(const uint4& words, int row) {
    return row == 0 ? words.x : row == 1 ? words.y : row == 2 ? words.z : words.w;
}

// Put codes as they came, row after row, into words. One thread makes one word.
extern "C" __global__ void __launch_bounds__(BLOCK)
lay(const code_t* rows, u32* words, i64 first, i64 count, int d, i64 stride) {
    const i64 r = (i64)blockIdx.x * BLOCK + threadIdx.x;
    const int g = blockIdx.y;
    if (r >= count) return;
    u32 word = 0;
#pragma unroll
    for (int n = 0; n < PER_WORD; ++n) {
        const int j = g * PER_WORD + n;
        if (j < d) word |= (u32)rows[r * d + j] << (CODE_BITS * n);
    }
    words[g * stride + first + r] = word;
}

__device__ __forceinline__ u32 settled(sum_t sum, u64 q, u64 m) { return (u32)reduced((u64)sum, q, m); }

#if CODE_BITS == 8 && VALUE_BITS == 32
// Tables of up to 256 entries below 2^31, or of a ring. Every lane of a warp has its own copy of the tables of four
// features, in its own bank of shared memory. So a look-up never waits for another, and the time does not depend on codes
// or tables. A block keeps the sums of its rows in registers while the tables of all features come by.
extern "C" __global__ void __launch_bounds__(TILE, 1)
table(const uint4* words, i64 stride, int groups, const u32* tables, int size, u64 q, u64 m, u64 constant, uint4* values,
      i64 tiles) {
    extern __shared__ u32 own[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int entries = PER_WORD * size;
    for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const i64 at = tile * (QUADS * TILE) + threadIdx.x;
        sum_t sums[QUADS][4];
#pragma unroll
        for (int i = 0; i < QUADS; ++i)
#pragma unroll
            for (int row = 0; row < 4; ++row) sums[i][row] = (sum_t)constant;
        for (int g = 0; g < groups; ++g) {
            uint4 read[QUADS];
#pragma unroll
            for (int i = 0; i < QUADS; ++i) read[i] = __ldcs(&words[g * (stride / 4) + at + i * TILE]);
            __syncthreads();  // nobody uses the tables before these any more
            for (int e = warp; e < entries; e += TILE / 32) own[e * 32 + lane] = __ldg(&tables[(i64)g * entries + e]);
            __syncthreads();
#pragma unroll
            for (int i = 0; i < QUADS; ++i)
#pragma unroll
                for (int row = 0; row < 4; ++row) {
                    const u32 word = part(read[i], row);
#pragma unroll
                    for (int n = 0; n < PER_WORD; n += 2) {  // two entries add up in 32 bits
                        const u32 one = own[(n * size + code(word, n)) * 32 + lane];
                        sums[i][row] += one + own[((n + 1) * size + code(word, n + 1)) * 32 + lane];
                    }
                }
        }
#pragma unroll
        for (int i = 0; i < QUADS; ++i)
            __stcs(&values[at + i * TILE],
                   make_uint4(settled(sums[i][0], q, m), settled(sums[i][1], q, m), settled(sums[i][2], q, m),
                              settled(sums[i][3], q, m)));
    }
}

// Many questions in one pass over the rows: lane t of a warp has question t, or, PAIRED, questions t and t + 32, whose
// entries of 16 bits stand in one word. All lanes look up the same code, and read 128 bytes next to each other. A warp
// has eight rows. values: question after question, `stride` apart.
template <bool PAIRED>
__device__ __forceinline__ void many(const uint4* words, i64 stride, int groups, const u32* tables, int size, u64 q, u64 m,
                                     u32* values, i64 tiles) {
    extern __shared__ u32 own[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int entries = PER_WORD * size;
    for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const i64 at = tile * (TILE / 32 * HELD) + warp * HELD;
        sum_t sums[HELD][4];
        u32 tops[HELD][4];
#pragma unroll
        for (int i = 0; i < HELD; ++i)
#pragma unroll
            for (int row = 0; row < 4; ++row) sums[i][row] = tops[i][row] = 0;
        for (int g = 0; g < groups; ++g) {
            __syncthreads();
            for (int e = threadIdx.x; e < entries * 32; e += TILE) own[e] = __ldg(&tables[(i64)g * entries * 32 + e]);
            __syncthreads();
#pragma unroll
            for (int i = 0; i < HELD; ++i) {
                const uint4 read = __ldg(&words[g * (stride / 4) + at + i]);
#pragma unroll
                for (int row = 0; row < 4; ++row)
#pragma unroll
                    for (int n = 0; n < PER_WORD; ++n) {
                        const u32 entry = own[(n * size + code(part(read, row), n)) * 32 + lane];
                        sums[i][row] += entry;
                        if (PAIRED) tops[i][row] += entry >> 16;
                    }
            }
        }
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
#pragma unroll
            for (int row = 0; row < 4 && PAIRED; ++row) sums[i][row] -= (sum_t)tops[i][row] << 16;
            ((uint4*)(values + lane * stride))[at + i] =
                make_uint4(settled(sums[i][0], q, m), settled(sums[i][1], q, m), settled(sums[i][2], q, m),
                           settled(sums[i][3], q, m));
            if (PAIRED)
                ((uint4*)(values + (lane + 32) * stride))[at + i] =
                    make_uint4(settled(tops[i][0], q, m), settled(tops[i][1], q, m), settled(tops[i][2], q, m),
                               settled(tops[i][3], q, m));
        }
    }
}

extern "C" __global__ void __launch_bounds__(TILE, 1)
together(const uint4* words, i64 stride, int groups, const u32* tables, int size, u64 q, u64 m, u32* values, i64 tiles) {
    many<false>(words, stride, groups, tables, size, q, m, values, tiles);
}

#if SUM_BITS == 32
extern "C" __global__ void __launch_bounds__(TILE, 1)
together_paired(const uint4* words, i64 stride, int groups, const u32* tables, int size, u64 q, u64 m, u32* values,
                i64 tiles) {
    many<true>(words, stride, groups, tables, size, q, m, values, tiles);
}
#endif
#endif

// Tables of any size, and of any field: in shared memory where they fit, else where they are. A thread has four rows.
extern "C" __global__ void __launch_bounds__(BLOCK)
plain_table(const uint4* words, i64 stride, int groups, const value_t* tables, int size, int shared, u64 q, u64 m,
            u64 constant, value_t* values, i64 quads) {
    extern __shared__ u64 room[];
    value_t* near = (value_t*)room;
    if (shared) {
        for (int e = threadIdx.x; e < groups * PER_WORD * size; e += BLOCK) near[e] = tables[e];
        __syncthreads();
    }
    for (i64 at = (i64)blockIdx.x * BLOCK + threadIdx.x; at < quads; at += (i64)gridDim.x * BLOCK) {
        u64 sums[4] = {constant, constant, constant, constant};
        for (int g = 0; g < groups; ++g) {
            const uint4 read = words[g * (stride / 4) + at];
#pragma unroll
            for (int n = 0; n < PER_WORD; ++n) {
                const i64 base = (i64)(g * PER_WORD + n) * size;
#pragma unroll
                for (int row = 0; row < 4; ++row) {
                    const i64 which = base + code(part(read, row), n);
                    sums[row] += shared ? near[which] : __ldg(&tables[which]);
#if VALUE_BITS == 64
                    sums[row] -= sums[row] >= q ? q : 0;
#endif
                }
            }
        }
#pragma unroll
        for (int row = 0; row < 4; ++row) {
#if VALUE_BITS == 32
            values[at * 4 + row] = (u32)reduced(sums[row], q, m);
#else
            values[at * 4 + row] = sums[row];
#endif
        }
    }
}

#if VALUE_BITS == 32
// constant + sum_j (one[j] y_j + two[j] y_j^2) mod q. A thread has eight rows.
extern "C" __global__ void __launch_bounds__(BLOCK)
polynomial(const uint4* words, i64 stride, int groups, const uint2* factors, u64 q, u64 m, u64 constant, uint4* values,
           i64 quads) {
    extern __shared__ uint2 near2[];
    for (int j = threadIdx.x; j < groups * PER_WORD; j += BLOCK) near2[j] = factors[j];
    __syncthreads();
    for (i64 at = (i64)blockIdx.x * (2 * BLOCK) + threadIdx.x; at < quads; at += (i64)gridDim.x * (2 * BLOCK)) {
        u64 sums[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int row = 0; row < 4; ++row) sums[i][row] = constant;
#pragma unroll 4
        for (int g = 0; g < groups; ++g) {
            uint4 read[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) read[i] = __ldcs(&words[g * (stride / 4) + at + i * BLOCK]);
#pragma unroll
            for (int n = 0; n < PER_WORD; ++n) {
                const uint2 factor = near2[g * PER_WORD + n];
#pragma unroll
                for (int i = 0; i < 2; ++i)
#pragma unroll
                    for (int row = 0; row < 4; ++row) {
                        const u32 y = code(part(read[i], row), n);
#if CODE_BITS == 8
                        sums[i][row] += (u64)factor.x * y + (u64)factor.y * (y * y);  // below 2^49
#else
                        sums[i][row] += reduced((u64)factor.y * y + factor.x, q, m) * y;  // below 2^48
#endif
                    }
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const u64* sum = sums[i];
            __stcs(&values[at + i * BLOCK],
                   make_uint4((u32)reduced(sum[0], q, m), (u32)reduced(sum[1], q, m), (u32)reduced(sum[2], q, m),
                              (u32)reduced(sum[3], q, m)));
        }
    }
}
#endif

// The xor of some columns of 16 bytes of the chosen records. All are read, whichever are chosen. A thread keeps to one
// column, and has eight records on their way.
extern "C" __global__ void __launch_bounds__(BLOCK)
xor_records(const uint4* records, const u32* chosen, u32* total, i64 rows, int width, int first, int columns) {
    __shared__ u32 sums[BLOCK * 4];
    const int begin = blockIdx.y * BLOCK, here = min(BLOCK, columns - begin), deep = BLOCK / here;
    const int column = threadIdx.x % here, level = threadIdx.x / here;
    for (int i = threadIdx.x; i < here * 4; i += BLOCK) sums[i] = 0;
    __syncthreads();
    uint4 sum = make_uint4(0, 0, 0, 0);
    if (level < deep) {
        const i64 step = (i64)gridDim.x * deep;
#pragma unroll 8
        for (i64 row = (i64)blockIdx.x * deep + level; row < rows; row += step) {
            const uint4 read = __ldcs(&records[row * width + first + begin + column]);
            const u32 mask = 0u - ((__ldg(&chosen[row >> 5]) >> (row & 31)) & 1u);
            sum.x ^= read.x & mask;
            sum.y ^= read.y & mask;
            sum.z ^= read.z & mask;
            sum.w ^= read.w & mask;
        }
        atomicXor(&sums[column * 4], sum.x);
        atomicXor(&sums[column * 4 + 1], sum.y);
        atomicXor(&sums[column * 4 + 2], sum.z);
        atomicXor(&sums[column * 4 + 3], sum.w);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < here * 4; i += BLOCK) atomicXor(&total[begin * 4 + i], sums[i]);
}

__device__ __forceinline__ u32 doubled(u32 bytes) {  // each byte times x, mod x^8 + x^4 + x^3 + x + 1
    return ((bytes & 0x7f7f7f7fu) << 1) ^ (((bytes >> 7) & 0x01010101u) * 0x1bu);
}

// sum_i scalars[i] * records[i] over GF(2^8). There is a sum for each bit of the scalars; at the end sum b is times x^b.
extern "C" __global__ void __launch_bounds__(BLOCK)
combine(const u32* records, const u8* scalars, u32* total, i64 rows, int width) {
    __shared__ u32 sums[BLOCK];
    const int begin = blockIdx.y * BLOCK, here = min(BLOCK, width - begin), deep = BLOCK / here;
    const int column = threadIdx.x % here, level = threadIdx.x / here;
    if (threadIdx.x < here) sums[threadIdx.x] = 0;
    __syncthreads();
    if (level < deep) {
        u32 by_bit[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        const i64 step = (i64)gridDim.x * deep;
#pragma unroll 4
        for (i64 row = (i64)blockIdx.x * deep + level; row < rows; row += step) {
            const u32 read = __ldcs(&records[row * width + begin + column]), scalar = __ldg(&scalars[row]);
#pragma unroll
            for (int b = 0; b < 8; ++b) by_bit[b] ^= read & (0u - ((scalar >> b) & 1u));
        }
        u32 sum = by_bit[7];
#pragma unroll
        for (int b = 6; b >= 0; --b) sum = doubled(sum) ^ by_bit[b];
        atomicXor(&sums[column], sum);
    }
    __syncthreads();
    if (threadIdx.x < here) atomicXor(&total[begin + threadIdx.x], sums[threadIdx.x]);
}

#ifdef BITS
// Pack the lowest bits of the values of all places: planes (BITS, words, blocks). A thread has one word of one block, and
// reads one value of each of its 64 runs. Planes are turned round in shared memory, so that both reads and writes are of
// bytes next to each other.
extern "C" __global__ void __launch_bounds__(BLOCK)
slice(const value_t* values, i64 rows, value_t pad, int words, int blocks, u64* planes) {
    __shared__ u64 turn[8][33];
    const int x = threadIdx.x & 31, y = threadIdx.x >> 5;
    const int word = blockIdx.x * 32 + x, block = blockIdx.y * 8 + y;
    u64 made[BITS];
#pragma unroll
    for (int b = 0; b < BITS; ++b) made[b] = 0;
    if (word < words && block < blocks) {
        for (int run = 0; run < 64; ++run) {
            const i64 at = ((i64)block * 64 + run) * words + word;
            const value_t value = at < rows ? values[at] : pad;
            const int lane = __brev(run) >> 26;
#pragma unroll
            for (int b = 0; b < BITS; ++b) made[b] |= (u64)((value >> b) & 1) << lane;
        }
    }
    const int across = threadIdx.x & 7, along = threadIdx.x >> 3;
    const int to_word = blockIdx.x * 32 + along, to_block = blockIdx.y * 8 + across;
#pragma unroll
    for (int b = 0; b < BITS; ++b) {
        __syncthreads();
        turn[y][x] = made[b];
        __syncthreads();
        if (to_word < words && to_block < blocks)
            planes[((i64)b * words + to_word) * blocks + to_block] = turn[across][along];
    }
}
#endif

// A share of the products of left and right factors, from the opened factors and shares of masks and their products. The
// right factors may be fewer: each stands for `gridDim.y` left ones.
extern "C" __global__ void __launch_bounds__(BLOCK)
made(const u64* opened, const u64* masks, const u64* products, u64* shares, i64 right, int seat) {
    const i64 left = right * gridDim.y, base = right * blockIdx.y;
    for (i64 r = (i64)blockIdx.x * BLOCK + threadIdx.x; r < right; r += (i64)gridDim.x * BLOCK) {
        const i64 l = base + r;
        const u64 other = opened[left + r], mask = masks[left + r];
        shares[l] = products[l] ^ (masks[l] & other) ^ (opened[l] & (seat ? mask : mask ^ other));
    }
}
