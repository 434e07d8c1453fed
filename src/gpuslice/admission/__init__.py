"""Admission: AdmissionReview bytes in, AdmissionReview bytes out. Nothing here reads a socket or a cluster."""
