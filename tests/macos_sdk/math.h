#pragma once
#define NAN         __builtin_nanf("")
#define INFINITY    __builtin_inff()
#define HUGE_VAL    __builtin_inf()
#define M_PI        3.14159265358979323846264338327950288
#define M_SQRT1_2   0.707106781186547524400844362104849039
#define M_SQRT2     1.41421356237309504880168872420969808
#define M_LN2       0.693147180559945309417232121458176568
#define isnan(x)    __builtin_isnan(x)
#define isinf(x)    __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)
#define signbit(x)  __builtin_signbit(x)
#define F(name)                                                                                                        \
    double name(double);                                                                                               \
    float name##f(float);
F(exp)
F(exp2)
F(expm1) F(log) F(log2) F(log10) F(log1p) F(sqrt) F(cbrt) F(sin) F(cos) F(tan) F(asin) F(acos) F(atan) F(sinh) F(cosh)
    F(tanh) F(erf) F(erfc) F(fabs) F(floor) F(ceil) F(trunc) F(round) F(rint) F(nearbyint) F(tgamma) F(lgamma)
#undef F
#define F(name)                                                                                                        \
    double name(double, double);                                                                                       \
    float name##f(float, float);
        F(pow) F(fmod) F(fmin) F(fmax) F(atan2) F(hypot) F(copysign) F(nextafter) F(remainder) F(fdim)
#undef F
            double fma(double, double, double);
float fmaf(float, float, float);
double ldexp(double, int);
float ldexpf(float, int);
double scalbn(double, int);
float scalbnf(float, int);
double frexp(double, int *);
float frexpf(float, int *);
double modf(double, double *);
float modff(float, float *);
long lround(double);
long lroundf(float);
long lrint(double);
long lrintf(float);
long long llround(double);
long long llrint(double);
long long llroundf(float);
int ilogb(double);
int ilogbf(float);
