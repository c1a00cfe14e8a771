"""REST form of the Open Inference Protocol: conversion to and from its messages, without I/O."""
