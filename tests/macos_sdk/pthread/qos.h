#pragma once
typedef enum { QOS_CLASS_UTILITY = 0x11, QOS_CLASS_BACKGROUND = 0x09 } qos_class_t;
int pthread_set_qos_class_self_np(qos_class_t, int);
